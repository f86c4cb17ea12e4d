package dev.streamfuse

import java.io.File
import java.nio.file.FileSystemException
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.security.MessageDigest
import java.util.UUID
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.ProducerScope
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.flow.conflate
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.withContext

/**
 * The bundles in a folder of the app: lists, downloads, imports and deletes them.
 *
 *     val store = BundleStore(File(context.filesDir, "bundles"), publicKey = "d75a98…")
 *     val entry = store.catalog("https://models.example/catalog.json").entries.first()
 *     store.download(entry).collect { progress -> show(progress) }
 *     val model = StreamFuse.load(store.list().first { it.id == entry.id }.folder, Options(checkHashes = false))
 *
 * A bundle that is listed is whole: it gets its name, in one step, after everything in it has been checked and is on
 * the disk. Nothing here runs on the calling thread. Any number of stores may use a folder at once, also in several
 * processes.
 *
 * @property directory where the bundles are, each in a folder of its own. Choose one that backups leave out.
 * @param publicKey the line that `streamfuse bundle keygen` wrote. Bundles that are not signed with this key are not
 *   installed; only their manifest and signature are downloaded. Null: the signature is not checked, so install only
 *   from a publisher whose app you would install.
 * @param limits what a bundle may have at most.
 * @param dispatcher where files and connections are used; they block its threads.
 * @param check called with the complete folder before the bundle is installed; throws to refuse it. Null: the bundle is
 *   loaded once, which checks its signature and hashes and that this device can run it.
 */
public class BundleStore @JvmOverloads constructor(
    public val directory: File,
    publicKey: String? = null,
    private val limits: BundleLimits = BundleLimits(),
    private val dispatcher: CoroutineDispatcher = Dispatchers.IO,
    check: (suspend (folder: File) -> Unit)? = null,
) {
    private val check = check ?: { folder -> StreamFuse.load(folder, Options(publicKey = publicKey)).close() }

    /** Checks the manifest and its signature, which a download receives first. */
    private val checkManifest: (folder: File) -> Unit =
        if (check == null || publicKey != null) { folder -> StreamFuse.verifyManifest(folder, publicKey) } else { _ -> }

    internal var http = Http()

    /** The free bytes of the disk. */
    internal var usableBytes: () -> Long = { directory.apply { mkdirs() }.usableSpace }

    /** The bundles, by name. */
    public suspend fun list(): List<InstalledBundle> = withContext(dispatcher) { installed() }

    /** Where the bundle of that name is, or would be. Does not read the disk. */
    public fun folder(name: String): File = File(directory, name)

    /**
     * Reads a catalogue, which `streamfuse bundle catalog` wrote.
     *
     * @param address begins with `https://`.
     * @throws StreamFuseException [ErrorCode.NETWORK] if it cannot be downloaded, [ErrorCode.BAD_FILE] if it is not
     *   valid.
     */
    public suspend fun catalog(address: String): Catalog = withContext(dispatcher) {
        val uri = allowedAddress(address)
        Catalog.parse(http.get(uri, Catalog.MOST_BYTES).decodeToString(), uri.toString(), limits)
    }

    /**
     * Downloads a bundle and installs it; collecting the flow does it. What has arrived is kept if the connection fails
     * or the coroutine is cancelled, and the next download of the same contents, also in another process, goes on from
     * there. A failed connection is tried again for a few seconds.
     *
     * The manifest and its signature are downloaded first. No other file is requested until the signature is valid and
     * the manifest lists the same files as the catalogue. The size and hash of each file are checked while it is
     * received.
     *
     * The flow completes at once if the contents are in the store already, under any name. If another bundle has the
     * entry's name, a number is added to it.
     *
     * It fails with a [StreamFuseException]: [ErrorCode.NETWORK]; [ErrorCode.NO_SPACE], before anything is downloaded;
     * [ErrorCode.BUSY] if the same contents are being downloaded; [ErrorCode.BAD_FILE] for another file than that of
     * the catalogue; what the check throws, and then nothing is kept. IOException: the disk.
     */
    public fun download(entry: CatalogEntry): Flow<BundleProgress> = steps {
        installed(entry)?.let { return@steps it }
        val claim = Claim.of(partial(entry)) ?: throw busy(entry.name)
        claim.use {
            installed(entry)?.let { there -> // another store has installed it between the two lines above
                claim.folder.deleteTree()
                return@steps there
            }
            val folder = File(claim.folder, BUNDLE)
            receive(entry, claim.folder)
            send(BundleProgress.Checking)
            refusing(claim.folder) { check(folder) }
            ensureActive()
            install(folder, entry.name).also { claim.folder.deleteTree() }
        }
    }

    /** How many bytes of an interrupted download are here. */
    public suspend fun receivedBytes(entry: CatalogEntry): Long = withContext(dispatcher) {
        received(partial(entry))
    }

    /** Deletes what is here of an interrupted download. [ErrorCode.BUSY] if it goes on. */
    public suspend fun discard(entry: CatalogEntry): Unit = withContext(dispatcher) {
        if (partial(entry).exists()) (Claim.of(partial(entry)) ?: throw busy(entry.name)).use { it.folder.deleteTree() }
    }

    /**
     * Copies a bundle and installs it; collecting the flow does it. If it fails or is cancelled, nothing is kept.
     * Fails as [download] does. [open] may ask a slow file provider.
     */
    public fun import(open: () -> BundleSource): Flow<BundleProgress> = steps {
        temporary { folder ->
            val source = open()
            val content = File(folder, BUNDLE).apply { mkdirs() }
            val copy = Copy(content, limits, usableBytes() - SPARE_BYTES) {
                ensureActive()
                trySend(BundleProgress.Receiving(source.doneBytes, source.totalBytes))
            }
            Copy.all(source, copy)
            send(BundleProgress.Checking)
            val root = rootIn(content) ?: throw StreamFuseException(
                ErrorCode.BAD_FILE,
                "${source.name} contains no bundle: $MANIFEST is missing; choose what `streamfuse export` wrote",
            )
            check(root)
            ensureActive()
            install(root, source.name.removeSuffix(".zip"))
        }
    }

    /**
     * Deletes a bundle. Close its model first: task adapters and the self-test read files of the folder on first use.
     * IOException if there is no such bundle.
     */
    public suspend fun delete(name: String): Unit = withContext(dispatcher) {
        require(isPlainPath(name, depth = 1) && !name.startsWith(".")) { "$name is not the name of a bundle" }
        temporary { folder ->
            // Renamed first: a bundle is there, or it is not.
            Files.move(folder(name).toPath(), File(folder, BUNDLE).toPath(), StandardCopyOption.ATOMIC_MOVE)
            directory.flushNames()
        }
    }

    /**
     * Deletes what interrupted imports and deletions left, and downloads that nobody continued for [keepDays]. Call it
     * when the app starts. What runs at the moment is not touched.
     */
    @JvmOverloads
    public suspend fun sweep(keepDays: Int = 7): Unit = withContext(dispatcher) {
        val oldest = System.currentTimeMillis() - keepDays * 86_400_000L
        for (folder in directory.listFiles().orEmpty()) {
            val isOld = when {
                folder.name.startsWith(UNFINISHED) -> true
                folder.name.startsWith(PARTIAL) -> folder.walk().maxOf(File::lastModified) < oldest
                else -> false
            }
            if (isOld) Claim.of(folder)?.use { folder.deleteTree() }
        }
    }

    private fun steps(work: suspend ProducerScope<BundleProgress>.() -> InstalledBundle): Flow<BundleProgress> =
        channelFlow { send(BundleProgress.Installed(work())) }.conflate().flowOn(dispatcher)

    private fun installed(): List<InstalledBundle> =
        directory.listFiles { file -> file.isDirectory && !file.name.startsWith(".") }.orEmpty()
            .map(::facts)
            .sortedBy { it.name }

    private fun installed(entry: CatalogEntry) = installed().firstOrNull { it.id == entry.id }

    private fun facts(folder: File): InstalledBundle {
        val bytes = folder.walk().filter(File::isFile).sumOf(File::length)
        val id = runCatching { File(folder, MANIFEST).readBytes() }.map { manifest ->
            MessageDigest.getInstance("SHA-256").digest(manifest).toHexString()
        }
        return InstalledBundle(folder.name, folder, bytes, id.getOrDefault(""))
    }

    private fun partial(entry: CatalogEntry) = File(directory, PARTIAL + entry.id)

    /** Downloads all files: first the manifest and its signature and, once they are checked, the others. */
    private suspend fun ProducerScope<BundleProgress>.receive(entry: CatalogEntry, folder: File) {
        entry.needSmallManifest()
        val here = received(folder)
        val free = usableBytes() - SPARE_BYTES
        if (entry.bytes - here > free) throw noSpace(entry.bytes - here, free)
        val (first, others) = entry.files.toSortedMap().entries.partition { it.key in DESCRIBING }
        var done = 0L
        for ((path, facts) in first) done = receive(entry, folder, path, facts, done)
        val bundle = File(folder, BUNDLE)
        refusing(folder) {
            checkManifest(bundle)
            entry.needListed(File(bundle, MANIFEST).readText())
        }
        for ((path, facts) in others) done = receive(entry, folder, path, facts, done)
    }

    /** Runs a check, and deletes the download if the check refuses the bundle. */
    private inline fun refusing(folder: File, check: () -> Unit) = try {
        check()
    } catch (error: StreamFuseException) {
        if (error.code in REFUSALS) folder.deleteTree()
        throw error
    }

    /** Downloads one file and returns [done], the bytes of the files before it, plus its size. Partial files are named
     * by hash, so that a download can resume from another catalogue. */
    private suspend fun ProducerScope<BundleProgress>.receive(
        entry: CatalogEntry,
        folder: File,
        path: String,
        facts: CatalogFile,
        done: Long,
    ): Long {
        val target = File(folder, "$BUNDLE/$path")
        if (target.length() != facts.bytes || !target.isFile) {
            val part = File(folder, facts.sha256 + PART)
            http.complete(entry.address(path), part, facts) { bytes ->
                ensureActive()
                trySend(BundleProgress.Receiving(done + bytes, entry.bytes))
            }
            onDisk {
                target.parentFile!!.mkdirs()
                target.delete()
                Files.move(part.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE)
            }
        }
        return done + facts.bytes
    }

    private fun received(folder: File): Long {
        val parts = folder.listFiles { file -> file.name.endsWith(PART) }.orEmpty().asSequence()
        return (parts + File(folder, BUNDLE).walk()).filter(File::isFile).sumOf(File::length)
    }

    /** Gives a checked folder its name, or the next one that is free. */
    private fun install(folder: File, wanted: String): InstalledBundle {
        folder.flushAllNames()
        val plain = wanted.replace(Regex("[^\\p{L}\\p{N}._ -]"), "_").trim(' ', '.').take(60)
            .let { if (it.lastOrNull()?.isHighSurrogate() == true) it.dropLast(1) else it }
            .ifEmpty { "bundle" }
        for (number in 1..Int.MAX_VALUE) {
            val target = folder(if (number == 1) plain else "$plain $number")
            if (target.exists()) continue
            try {
                Files.move(folder.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE)
            } catch (error: FileSystemException) {
                if (target.exists()) continue // another store was faster
                throw error
            }
            directory.flushNames()
            return facts(target)
        }
        error("there is always a free number")
    }

    /** A folder of this call's own, which is deleted at its end. */
    private suspend fun <T> temporary(work: suspend (folder: File) -> T): T {
        directory.mkdirs()
        val claim = checkNotNull(Claim.of(File(directory, "$UNFINISHED-${UUID.randomUUID()}"))) { "its name is new" }
        return claim.use {
            try {
                work(claim.folder)
            } finally {
                claim.folder.deleteTree()
            }
        }
    }

    /** Zips are often made of the folder, not of its content. */
    private fun rootIn(copied: File): File? =
        (listOf(copied) + copied.listFiles(File::isDirectory).orEmpty()).firstOrNull { File(it, MANIFEST).isFile }

    private fun busy(name: String) = StreamFuseException(ErrorCode.BUSY, "$name is being downloaded already")

    private companion object {
        const val UNFINISHED = ".unfinished"
        const val PARTIAL = ".download-"
        const val BUNDLE = "bundle"
        const val PART = ".part"
        const val SPARE_BYTES = 64L shl 20 // so that the device stays usable

        /** A bundle that fails with one of these is of no use, however often it is tried. */
        val REFUSALS =
            setOf(ErrorCode.BAD_FILE, ErrorCode.BAD_PROGRAM, ErrorCode.BAD_TABLES, ErrorCode.MISSING_OPERATOR)
    }
}
