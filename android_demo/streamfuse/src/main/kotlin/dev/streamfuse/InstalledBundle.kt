package dev.streamfuse

import java.io.File

/**
 * A bundle in a [BundleStore].
 *
 * @property name of its folder.
 * @property folder for [StreamFuse.load].
 * @property bytes of all files together.
 * @property id the SHA-256 of its manifest: that of the [CatalogEntry] with the same contents. Empty if the manifest
 *   cannot be read.
 */
public data class InstalledBundle(val name: String, val folder: File, val bytes: Long, val id: String)

/**
 * Limits of an untrusted bundle. The largest that phones run have a few dozen files and a few gigabytes.
 *
 * @property files the largest number of files.
 * @property bytes the largest size of all files together.
 * @property depth the largest number of names in a path, its file included.
 */
public data class BundleLimits(val files: Int = 1000, val bytes: Long = 16L shl 30, val depth: Int = 10)

/** How far a download or an import is. */
public sealed interface BundleProgress {
    /** [doneBytes] have arrived, of [totalBytes]; null if the total is not known. */
    public data class Receiving(val doneBytes: Long, val totalBytes: Long?) : BundleProgress

    /** All bytes have arrived, and the library checks them. */
    public data object Checking : BundleProgress

    /** The last one: the bundle is in the store. */
    public data class Installed(val bundle: InstalledBundle) : BundleProgress
}
