package dev.streamfuse

import dev.streamfuse.testing.Publisher.Companion.with
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test

/** A catalogue is not trusted. */
class CatalogTest : StoreTestCase() {
    @Test
    fun `a catalogue with duplicate or hostile entries is refused with the entry and the field`() {
        fun refuses(named: String, edit: (JsonObject) -> JsonObject) {
            publisher.publish("good" to demo, "demo" to demo) { entry ->
                if (entry["name"] == JsonPrimitive("demo")) edit(entry) else entry
            }
            refused(ErrorCode.BAD_FILE, named) { entries() }
        }
        val zeros = "0".repeat(64)
        fun withFile(path: String, hash: String = zeros, bytes: Long = 0): (JsonObject) -> JsonObject = { entry ->
            val file = JsonObject(mapOf("sha256" to JsonPrimitive(hash), "bytes" to JsonPrimitive(bytes)))
            entry.with("files", JsonObject(entry.getValue("files").jsonObject + (path to file)))
        }
        refuses("good is in it twice") { it.with("name", "good") }
        for (path in hostilePaths + "c:evil") {
            refuses("bundles[1].files has the path", withFile(path))
        }
        refuses("bundles[1].files has the path", withFile("d/".repeat(10) + "deep"))
        refuses("bundles[1].files has \"model.pte/below\" below a file", withFile("model.pte/below"))
        refuses("bundles[1].files.\"x\".sha256 is not a SHA-256", withFile("x", hash = "../../evil"))
        refuses("bundles[1].files.\"x\".bytes is -1", withFile("x", bytes = -1))
        refuses("is larger than the limit of 16384 MiB") {
            withFile("y", bytes = 16L shl 30)(withFile("x", bytes = 16L shl 30)(it))
        }
        refuses("bundles[1].bytes is 5, but its files have $demoBytes") { it.with("bytes", 5) }
        refuses("bundles[1].files has no manifest.json") { entry ->
            entry.with("files", JsonObject(entry.getValue("files").jsonObject - "manifest.json"))
        }
        for (name in listOf("", "..", ".hidden", "a/b", "x".repeat(61), "a b")) {
            refuses("bundles[1].name") { it.with("name", name) }
        }
        for (title in listOf("", "two\nlines", "\u202Eesrever", "x".repeat(201))) {
            refuses("bundles[1].title") { it.with("title", title) }
        }
        refuses("bundles[1].context_length is 0") { it.with("context_length", 0) }
        val relative = listOf("demo", "demo/?a=/", "de mo/", "//u@h/")
        for (url in listOf("http://models.example/demo/", "ftp://models.example/demo/", "file:///data/") + relative) {
            refuses("bundles[1].url is \"$url\"") { it.with("url", url) }
        }
        refuses("the catalogue is damaged") { it.with("context_length", "many") }
        publisher.put("catalog.json", "<html>".toByteArray())
        refused(ErrorCode.BAD_FILE, "the catalogue is damaged") { entries() }
        publisher.put("catalog.json", "{\"catalog_version\": 2}".toByteArray())
        refused(ErrorCode.BAD_FILE, "catalog_version is 2") { entries() }
        publisher.put("catalog.json", ByteArray((4 shl 20) + 1) { ' '.code.toByte() })
        refused(ErrorCode.BAD_FILE, "is larger than 4 MiB") { entries() }
        val others = listOf("catalog.json", "", "https://", "file:///etc/passwd", "no address")
        for (address in others + "http://models.example/catalog.json") {
            refused(ErrorCode.BAD_ARGUMENT, "is not an address that begins with https://") {
                runBlocking { store.catalog(address) }
            }
        }
        assertEquals(emptyList<String>(), left())
    }

    @Test
    fun `addresses are relative to that of the catalogue, also where it has no path, and their scheme may be in capitals`() {
        val json = publisher.publish("demo" to demo)
        fun file(address: String) = "${Catalog.parse(json, address).entries.single().address("model.pte")}"
        assertEquals("https://models.example/demo/model.pte", file("https://models.example"))
        assertEquals("https://models.example/demo/model.pte", file("https://models.example/catalog.json"))
        assertEquals("https://models.example/a/demo/model.pte", file("https://models.example/a/catalog.json"))
        assertEquals("HTTPS://models.example/demo/model.pte", file("HTTPS://models.example"))
        publisher.publish("demo" to demo)
        val entries = runBlocking { store.catalog(publisher.address.replace("http", "HTTP")).entries }
        assertEquals(demoBytes, (download(entries.single()).last() as BundleProgress.Installed).bundle.bytes)
    }

    @Test
    fun `a host name may contain an underscore, and an invalid host is refused`() {
        val json = publisher.publish("demo" to demo)
        val entry = Catalog.parse(json, "https://my_models.example:8443/catalog.json").entries.single()
        assertEquals("https://my_models.example:8443/demo/model.pte", "${entry.address("model.pte")}")
        val wrong = "is not an address that begins with https://"
        for (rest in listOf("s://user@my_models.example/", "s://my_models.example:port/", "://my_models.example/")) {
            refused(ErrorCode.BAD_ARGUMENT, wrong) { Catalog.parse(json, "http$rest") }
        }
    }

    @Test
    fun `an entry has the reason why a device cannot run it`() {
        publisher.publish("demo" to demo, "npu" to demo, "phone" to demo) {
            if (it["name"] == JsonPrimitive("npu")) it.with("backend", "qnn")
            else if (it["name"] == JsonPrimitive("phone")) it.with("target", "coreml")
            else it
        }
        val (demo, npu, phone) = entries()
        val backends = mapOf("kernels" to null)
        assertEquals(null, demo.unsupportedReason(backends))
        assertEquals("this library has no backend qnn", npu.unsupportedReason(backends))
        assertEquals("no Snapdragon", npu.unsupportedReason(backends + ("qnn" to "no Snapdragon")))
        val other = "it is for coreml, and this library runs bundles for executorch"
        assertEquals(other, phone.unsupportedReason(backends))
    }
}
