package dev.streamfuse

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.net.HttpURLConnection
import java.net.URI
import java.net.URISyntaxException
import java.net.URL
import java.security.MessageDigest
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.delay
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.launch

/**
 * Requests over HTTP, which block their thread.
 *
 * @property timeoutMs how long a server may be silent.
 * @property retryMs waits before the further attempts of a download that receives nothing.
 */
internal class Http(
    private val timeoutMs: Int = 20_000,
    private val retryMs: List<Long> = listOf(1_000, 2_000, 4_000),
) {
    /** A server's refusal. [isTemporary]: it may answer otherwise a moment later. */
    private class Refusal(sentence: String, val isTemporary: Boolean) : IOException(sentence)

    /** At most [most] bytes. */
    suspend fun get(uri: URI, most: Int): ByteArray = try {
        request(uri, 0) { connection ->
            connection.need(HttpURLConnection.HTTP_OK)
            val bytes = ByteArrayOutputStream()
            val buffer = ByteArray(BLOCK)
            connection.inputStream.use { body ->
                while (true) {
                    val count = body.read(buffer)
                    if (count < 0) break
                    bytes.write(buffer, 0, count)
                    if (bytes.size() > most) throw badFile("$uri is larger than ${most shr 20} MiB")
                }
            }
            bytes.toByteArray()
        }
    } catch (error: IOException) {
        throw unreachable(uri, error)
    }

    /**
     * Completes [part], whose first bytes may be there from an earlier attempt, and compares its hash, which is
     * computed while bytes arrive. If it is another one, the part is deleted.
     */
    suspend fun complete(uri: URI, part: File, facts: CatalogFile, report: (doneBytes: Long) -> Unit) {
        val digest = MessageDigest.getInstance("SHA-256")
        onDisk { FileOutputStream(part, true) }.use { out ->
            var done = read(part, facts.bytes, digest)
            fun restart() {
                onDisk { out.channel.truncate(0) }
                digest.reset()
                done = 0
            }
            if (part.length() > facts.bytes) restart()
            var isResumed = done > 0
            while (true) {
                report(done)
                fill(uri, part, facts, { done }, ::restart) { buffer, count ->
                    onDisk { out.write(buffer, 0, count) }
                    digest.update(buffer, 0, count)
                    done += count
                    report(done)
                }
                onDisk { out.fd.sync() }
                if (digest.digest().toHexString() == facts.sha256) return
                if (!isResumed) break
                isResumed = false
                restart() // what an earlier attempt left may have been damaged by a power failure
            }
        }
        part.delete()
        throw badFile("${uri.path} is not the file of the catalogue (SHA-256); the publisher must upload it again")
    }

    /** Requests what is missing until it is there; [done] bytes are. */
    private suspend fun fill(
        uri: URI,
        part: File,
        facts: CatalogFile,
        done: () -> Long,
        restart: () -> Unit,
        take: (ByteArray, Int) -> Unit,
    ) {
        var attempt = 0
        var most = done() // a file that is started again and again makes no progress
        while (done() < facts.bytes) {
            val before = done()
            try {
                request(uri, before) { connection ->
                    if (connection.responseCode == HttpURLConnection.HTTP_PARTIAL) {
                        connection.needRange(before, facts.bytes, uri.path)
                    } else {
                        if (before > 0 && connection.responseCode == HTTP_NOT_SATISFIABLE) {
                            restart() // the file was another one before, or is incomplete on the server
                            throw IOException("the server has no byte $before")
                        }
                        connection.need(HttpURLConnection.HTTP_OK)
                        if (before > 0) restart() // a server without ranges
                        connection.needLength(facts.bytes, uri.path)
                    }
                    append(connection, facts.bytes - done(), uri.path, take)
                }
            } catch (error: DiskException) {
                throw error
            } catch (error: IOException) {
                if (error is Refusal && !error.isTemporary) throw unreachable(uri, error)
                if (done() > most) attempt = 0
                most = maxOf(most, done())
                if (attempt == retryMs.size) throw unreachable(uri, error)
                delay(retryMs[attempt++])
            } catch (error: StreamFuseException) {
                if (error.code == ErrorCode.BAD_FILE) part.delete()
                throw error
            }
        }
    }

    /** The number of bytes, which go into the [digest]. */
    private suspend fun read(part: File, most: Long, digest: MessageDigest): Long = onDisk {
        var done = 0L
        val there = part.length()
        if (there <= most) part.inputStream().use { input ->
            val buffer = ByteArray(BLOCK)
            while (done < there) {
                currentCoroutineContext().ensureActive()
                val count = input.read(buffer)
                if (count < 0) break
                digest.update(buffer, 0, count)
                done += count
            }
        }
        done
    }

    private fun append(connection: HttpURLConnection, most: Long, name: String, take: (ByteArray, Int) -> Unit) {
        val buffer = ByteArray(BLOCK)
        var left = most
        connection.inputStream.use { body ->
            while (true) {
                val count = body.read(buffer)
                if (count < 0) break
                if (count > left) throw badFile("$name is larger on the server than in the catalogue")
                left -= count
                take(buffer, count)
            }
        }
        if (left > 0) throw IOException("the connection ended early")
    }

    private fun HttpURLConnection.need(status: Int) {
        val found = responseCode
        if (found != status) throw Refusal("the server answers with status $found", found >= 500 || found in RETRIED)
    }

    /** A server that names another size has another file: there is no need to read it. */
    private fun HttpURLConnection.needLength(bytes: Long, name: String) {
        val there = getHeaderField("Content-Length")?.toLongOrNull() ?: return
        if (there != bytes) throw badFile("$name has $there bytes on the server, but $bytes in the catalogue")
    }

    private fun HttpURLConnection.needRange(from: Long, bytes: Long, name: String) {
        val range = getHeaderField("Content-Range").orEmpty()
        val found = Regex("bytes (\\d+)-\\d+/(\\d+|\\*)").matchEntire(range.trim())?.groupValues
        if (found == null || found[1] != "$from") throw IOException("the server sends the range \"${range.take(100)}\"")
        if (found[2] != "*" && found[2] != "$bytes") {
            throw badFile("$name has ${found[2]} bytes on the server, but $bytes in the catalogue")
        }
    }

    /** Lets [read] use the answer to a request. If the coroutine is cancelled meanwhile, the connection is closed. */
    private suspend fun <T> request(uri: URI, from: Long, read: (HttpURLConnection) -> T): T = coroutineScope {
        val connection = URL(uri.toString()).openConnection() as HttpURLConnection
        connection.connectTimeout = timeoutMs
        connection.readTimeout = timeoutMs
        connection.useCaches = false
        connection.setRequestProperty("Accept-Encoding", "identity") // the hash is of the bytes as they are
        if (from > 0) connection.setRequestProperty("Range", "bytes=$from-")
        val closing = launch(Dispatchers.IO, CoroutineStart.UNDISPATCHED) {
            try {
                awaitCancellation()
            } finally {
                connection.disconnect()
            }
        }
        try {
            connection.responseCode // follows redirects, which never change the protocol
            val arrived = try {
                connection.url.toURI()
            } catch (_: URISyntaxException) {
                null // a redirect may have characters that an address must not have
            }
            if (arrived == null || !isAllowed(arrived)) {
                throw Refusal("the server redirects to ${connection.url}", isTemporary = false)
            }
            read(connection)
        } catch (error: IOException) {
            ensureActive() // a connection that was closed because of this fails
            throw error
        } finally {
            closing.cancel()
        }
    }

    private fun unreachable(uri: URI, error: IOException): StreamFuseException {
        val reason = error.message?.takeIf { it.isNotBlank() }?.let { ": $it" }.orEmpty()
        val sentence = "$uri cannot be downloaded (${error.javaClass.simpleName}$reason); what has arrived is kept"
        val isTemporary = error !is Refusal || error.isTemporary
        return StreamFuseException(ErrorCode.NETWORK, sentence, isTemporary).apply { initCause(error) }
    }

    private fun badFile(sentence: String) = StreamFuseException(ErrorCode.BAD_FILE, sentence)

    private companion object {
        const val BLOCK = 1 shl 16
        const val HTTP_NOT_SATISFIABLE = 416
        val RETRIED = setOf(HttpURLConnection.HTTP_CLIENT_TIMEOUT, 429) // 429: too many requests
    }
}
