package dev.streamfuse.testing

import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpServer
import java.io.File
import java.io.IOException
import java.net.InetAddress
import java.net.InetSocketAddress
import java.security.MessageDigest
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonArray
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import kotlinx.serialization.json.putJsonObject

/** For the tests of library and app: a server of static files on this machine, with the faults of real ones. */
class Publisher : AutoCloseable {
    private val threads = Executors.newCachedThreadPool()
    private val server = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0)
    private val files = ConcurrentHashMap<String, ByteArray>()

    /** Path and range of each request. */
    val requests = CopyOnWriteArrayList<Pair<String, String?>>()

    /** After so many bytes of a file the connection is cut, in one answer each. */
    val cuts = ConcurrentHashMap<String, ArrayDeque<Int>>()

    /** The status of a path's next answers, instead of the file. */
    val statuses = ConcurrentHashMap<String, ArrayDeque<Int>>()

    /** Where a path is redirected to. */
    val redirects = ConcurrentHashMap<String, String>()
    @Volatile var hasRanges = true

    /** Whether the size of a file is sent before it. */
    @Volatile var tellsSize = true

    /** Called when half of a file is sent. */
    @Volatile var halfway: (path: String) -> Unit = {}

    /**
     * Half of the file is sent; when [gate] opens, the connection ends. A desktop JVM closes no connection while it waits
     * for its bytes, as Android does: a download that is paused then waits until the server has been silent for too long.
     */
    fun goesAwayHalfway(file: String, gate: CountDownLatch) {
        halfway = {
            if (it == file) {
                gate.await()
                throw IOException("the server goes away")
            }
        }
    }

    val address: String get() = "http://127.0.0.1:${server.address.port}/models/catalog.json"

    init {
        server.executor = threads
        server.createContext("/models/") { exchange -> exchange.use { answer(it) } }
        server.start()
    }

    fun put(path: String, content: ByteArray) {
        files[path] = content
    }

    /** Publishes bundles of these files, and returns the catalogue. */
    fun publish(
        vararg bundles: Pair<String, Map<String, ByteArray>>,
        edit: (JsonObject) -> JsonObject = { it },
    ): String {
        val catalog = buildJsonObject {
            put("catalog_version", 1)
            put("published", "a field of later versions")
            put("bundles", buildJsonArray {
                for ((name, content) in bundles) {
                    content.forEach { (path, bytes) -> this@Publisher.put("$name/$path", bytes) }
                    add(edit(entry(name, content)))
                }
            })
        }
        return catalog.toString().also { this@Publisher.put("catalog.json", it.encodeToByteArray()) }
    }

    fun entry(name: String, content: Map<String, ByteArray>): JsonObject = buildJsonObject {
        put("name", name)
        put("title", "The $name")
        put("license", "apache-2.0")
        put("context_length", 1024)
        put("bytes", content.values.sumOf { it.size })
        put("target", "executorch")
        put("backend", "kernels")
        put("url", "$name/")
        putJsonObject("files") {
            for ((path, bytes) in content) putJsonObject(path) {
                put("sha256", sha256(bytes))
                put("bytes", bytes.size)
            }
        }
    }

    private fun answer(exchange: HttpExchange) {
        val path = exchange.requestURI.path.removePrefix("/models/")
        val range = exchange.requestHeaders.getFirst("Range")
        requests += path to range
        redirects[path]?.let { exchange.responseHeaders["Location"] = it }
        val status = if (redirects.containsKey(path)) 302 else statuses[path]?.removeFirstOrNull()
        val content = files[path]
        if (status != null || content == null) return exchange.sendResponseHeaders(status ?: 404, -1)
        val from = if (hasRanges) range?.removePrefix("bytes=")?.removeSuffix("-")?.toInt() ?: 0 else 0
        if (from >= content.size && from > 0) return exchange.sendResponseHeaders(416, -1)
        if (from > 0) exchange.responseHeaders["Content-Range"] = "bytes $from-${content.size - 1}/${content.size}"
        val size = content.size - from
        val told = if (!tellsSize) 0 else if (size == 0) -1 else size.toLong() // 0: it is not told; -1: there is none
        exchange.sendResponseHeaders(if (from > 0) 206 else 200, told)
        val end = cuts[path]?.removeFirstOrNull()?.let { from + it } ?: content.size
        val middle = (from + end) / 2
        exchange.responseBody.write(content, from, middle - from)
        exchange.responseBody.flush()
        halfway(path)
        exchange.responseBody.write(content, middle, end - middle)
    }

    override fun close() {
        server.stop(0)
        threads.shutdownNow()
    }

    companion object {
        fun sha256(bytes: ByteArray): String =
            MessageDigest.getInstance("SHA-256").digest(bytes).toHexString()

        /** These files and a manifest that lists them; another [note] makes it another manifest. */
        fun bundle(files: Map<String, ByteArray>, note: String = ""): Map<String, ByteArray> {
            val manifest = buildJsonObject {
                put("note", note)
                putJsonObject("files") {
                    for ((path, bytes) in files - "manifest.json") putJsonObject(path) {
                        put("sha256", sha256(bytes))
                        put("bytes", bytes.size)
                    }
                }
            }
            return files + ("manifest.json" to manifest.toString().encodeToByteArray())
        }

        /** The files of a folder. */
        fun contentOf(folder: File): Map<String, ByteArray> =
            folder.walk().filter(File::isFile)
                .associate { it.relativeTo(folder).invariantSeparatorsPath to it.readBytes() }

        /** The object with one field changed. */
        fun JsonObject.with(field: String, value: Any?): JsonObject = JsonObject(
            this + (field to when (value) {
                is JsonObject -> value
                is Number -> JsonPrimitive(value)
                is String -> JsonPrimitive(value)
                else -> Json.parseToJsonElement("null")
            }),
        )
    }
}
