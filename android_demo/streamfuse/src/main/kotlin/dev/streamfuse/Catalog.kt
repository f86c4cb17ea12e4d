package dev.streamfuse

import java.net.URI
import java.net.URISyntaxException
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import org.jetbrains.annotations.Blocking

/** A file of a published bundle: its SHA-256, 64 lower-case hexadecimal digits, and its size. */
@Serializable
public class CatalogFile(public val sha256: String, public val bytes: Long)

/**
 * A published bundle.
 *
 * @property name the name that it gets in a store, unique in its catalogue.
 * @property title what people read.
 * @property license of the model; null if it is not stated.
 * @property contextLength in tokens.
 * @property bytes of all files together.
 * @property target for example `executorch`.
 * @property backend for example `kernels`: a name of [StreamFuse.backends].
 * @property url of the folder that contains the files, ends in `/`.
 * @property files by their paths, with `/` between folders.
 */
public class CatalogEntry internal constructor(
    public val name: String,
    public val title: String,
    public val license: String?,
    public val contextLength: Int,
    public val bytes: Long,
    public val target: String,
    public val backend: String,
    public val url: String,
    public val files: Map<String, CatalogFile>,
) {
    /** Identifies the contents: the SHA-256 of the manifest, which contains those of all other files. */
    public val id: String get() = files.getValue(MANIFEST).sha256

    /** The address of a file. */
    internal fun address(path: String): URI {
        val parts = path.split('/').map { part -> part.encodeToByteArray().joinToString("", transform = ::escaped) }
        return URI(url + parts.joinToString("/"))
    }

    /** Throws BAD_FILE if the manifest or its signature is larger than 16 MiB; they are downloaded before any check. */
    internal fun needSmallManifest() {
        for (name in DESCRIBING) {
            val bytes = files[name]?.bytes ?: continue
            if (bytes <= MOST_MANIFEST_BYTES) continue
            val most = "at most ${MOST_MANIFEST_BYTES shr 20} MiB are accepted"
            throw StreamFuseException(ErrorCode.BAD_FILE, "$name of ${this.name} has $bytes bytes in the catalogue; $most")
        }
    }

    /** Throws BAD_FILE unless [manifest] lists the same files as the catalogue, which is not signed. */
    internal fun needListed(manifest: String) {
        fun refused(reason: String): StreamFuseException {
            val sentence = "$MANIFEST of $name $reason; the publisher must write the catalogue again"
            return StreamFuseException(ErrorCode.BAD_FILE, sentence)
        }
        val listed = try {
            reader.decodeFromString(Listed.serializer(), manifest).files
        } catch (error: SerializationException) {
            throw refused("has no list of files (${error.message.orEmpty().lineSequence().first()})")
        }
        val others = files.filterKeys { it !in DESCRIBING }
        (others.keys - listed.keys).minOrNull()?.let { throw refused("does not list $it, which is in the catalogue") }
        (listed.keys - others.keys).minOrNull()?.let { throw refused("lists $it, which is not in the catalogue") }
        for ((path, facts) in listed.toSortedMap()) {
            val published = others.getValue(path)
            if (published.sha256 == facts.sha256 && published.bytes == facts.bytes) continue
            throw refused("has another size or SHA-256 of $path than the catalogue")
        }
    }

    /** The only field that is read from a manifest. */
    @Serializable
    private class Listed(val files: Map<String, CatalogFile>)

    private fun escaped(byte: Byte): String {
        val letter = byte.toInt().toChar()
        val isPlain = letter in 'a'..'z' || letter in 'A'..'Z' || letter in '0'..'9' || letter in "-._~"
        return if (isPlain) "$letter" else "%%%02X".format(byte)
    }

    private companion object {
        const val MOST_MANIFEST_BYTES = 16L shl 20
        val reader = Json { ignoreUnknownKeys = true }
    }

    /** Why this device cannot run the bundle; null if it can. The first call may open vendors' libraries. */
    @Blocking
    public fun unsupportedReason(): String? = when {
        !StreamFuse.isSupported -> "the native library cannot be loaded on this device"
        else -> unsupportedReason(StreamFuse.backends)
    }

    /** Why a device with these [backends] cannot run the bundle; null if it can. */
    public fun unsupportedReason(backends: Map<String, String?>): String? = when {
        target != "executorch" -> "it is for $target, and this library runs bundles for executorch"
        backend !in backends -> "this library has no backend $backend"
        else -> backends[backend]
    }
}

/** The bundles that somebody publishes: the file that `streamfuse bundle catalog` writes. See [BundleStore.catalog]. */
public class Catalog internal constructor(public val entries: List<CatalogEntry>) {
    public companion object {
        internal const val MOST_BYTES = 4 shl 20
        private const val VERSION = 1
        private val reader = Json { ignoreUnknownKeys = true }
        private val plainName = Regex("[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
        private val control = Regex("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
        private val hash = Regex("[0-9a-f]{64}")

        /**
         * Reads a catalogue that the app has. [address] is where it was published, or any HTTPS address in the folder
         * that contains the bundles: addresses in it are relative to it.
         *
         * @throws StreamFuseException ([ErrorCode.BAD_FILE]) with a sentence that names entry and field.
         */
        @JvmStatic
        @JvmOverloads
        public fun parse(json: String, address: String, limits: BundleLimits = BundleLimits()): Catalog {
            // Without a path, `resolve` would append to the host's name.
            val base = allowedAddress(address).let { if (it.rawPath.isEmpty()) it.resolve("/") else it }
            val raw = try {
                val version = reader.decodeFromString(Version.serializer(), json).version
                need(version == VERSION) { "catalog_version is $version, but this library reads $VERSION" }
                reader.decodeFromString(Raw.serializer(), json)
            } catch (error: SerializationException) {
                val first = error.message.orEmpty().lineSequence().first()
                throw StreamFuseException(ErrorCode.BAD_FILE, "the catalogue is damaged: $first")
            }
            val entries = raw.bundles.mapIndexed { place, entry -> checked(entry, "bundles[$place]", base, limits) }
            entries.groupBy { it.name }.values.firstOrNull { it.size > 1 }?.let { twice ->
                need(false) { "${twice.first().name} is in it twice" }
            }
            return Catalog(entries)
        }

        private fun checked(raw: RawEntry, where: String, base: URI, limits: BundleLimits): CatalogEntry {
            fun need(so: Boolean, problem: () -> String) = Companion.need(so) { "$where.${problem()}" }
            need(plainName.matches(raw.name)) { "name is not a plain name" }
            for ((field, text) in listOf("title" to raw.title, "backend" to raw.backend, "target" to raw.target)) {
                need(isLine(text) && text.isNotBlank()) { "$field is empty, too long or not one line" }
            }
            need(raw.license == null || isLine(raw.license)) { "license is too long or not one line" }
            need(raw.contextLength > 0) { "context_length is ${raw.contextLength}" }
            val count = raw.files.size
            need(count in 1..limits.files) { "files has $count files; at most ${limits.files} are accepted" }
            need(MANIFEST in raw.files) { "files has no $MANIFEST" }
            var sum = 0L
            for ((path, file) in raw.files) {
                need(isPlainPath(path, limits.depth)) { "files has the path ${shown(path)}, which is not allowed" }
                need(hash.matches(file.sha256)) { "files.${shown(path)}.sha256 is not a SHA-256" }
                need(file.bytes in 0..limits.bytes) { "files.${shown(path)}.bytes is ${file.bytes}" }
                sum += file.bytes
                need(sum <= limits.bytes) { "files is larger than the limit of ${limits.bytes shr 20} MiB" }
                val folders = generateSequence(path.substringBeforeLast('/', "")) { it.substringBeforeLast('/', "") }
                val isBelow = folders.takeWhile(String::isNotEmpty).any { it in raw.files }
                need(!isBelow) { "files has ${shown(path)} below a file" }
            }
            need(sum == raw.bytes) { "bytes is ${raw.bytes}, but its files have $sum" }
            val url = try {
                base.resolve(URI(raw.url))
            } catch (_: URISyntaxException) {
                null
            }
            need(url != null && isAllowed(url) && url.path.endsWith("/") && url.query == null && url.fragment == null) {
                "url is ${shown(raw.url)}; it must be the HTTPS address of a folder, and end in /"
            }
            return CatalogEntry(
                raw.name, raw.title, raw.license, raw.contextLength, raw.bytes, raw.target, raw.backend, url.toString(),
                raw.files,
            )
        }

        private fun isLine(text: String) = text.length <= 200 && !control.containsMatchIn(text)

        private fun shown(text: String) = "\"${text.take(100).replace(control, "?")}\""

        private fun need(so: Boolean, problem: () -> String) {
            if (!so) throw StreamFuseException(ErrorCode.BAD_FILE, "the catalogue is not valid: ${problem()}")
        }
    }

    @Serializable
    private class Version(@SerialName("catalog_version") val version: Int)

    @Serializable
    private class Raw(val bundles: List<RawEntry>)

    @Serializable
    private class RawEntry(
        val name: String,
        val title: String,
        val license: String? = null,
        @SerialName("context_length") val contextLength: Int,
        val bytes: Long,
        val target: String,
        val backend: String,
        val url: String,
        val files: Map<String, CatalogFile>,
    )
}

/** An address that bundles may come from. */
internal fun allowedAddress(address: String): URI {
    val uri = try {
        URI(address.trim())
    } catch (_: URISyntaxException) {
        null
    }
    if (uri == null || !isAllowed(uri)) {
        val sentence = "\"${address.take(200)}\" is not an address that begins with https://"
        throw StreamFuseException(ErrorCode.BAD_ARGUMENT, sentence)
    }
    return uri
}

/** HTTPS, or HTTP from this device itself. */
internal fun isAllowed(uri: URI): Boolean {
    val host = uri.hostName
    return !host.isNullOrEmpty() && uri.userInfo == null && when (uri.scheme?.lowercase()) {
        "https" -> true
        "http" -> host.lowercase() in listOf("localhost", "127.0.0.1", "[::1]")
        else -> false
    }
}

/** The host, also with an underscore, which [URI] does not read as a host's name outside Android. */
private val URI.hostName: String? get() = host ?: rawAuthority?.let(namedHost::matchEntire)?.groupValues?.get(1)

private val namedHost = Regex("([A-Za-z0-9._-]+)(:[0-9]*)?")
