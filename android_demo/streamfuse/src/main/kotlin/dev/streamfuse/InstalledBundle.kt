package dev.streamfuse

import java.io.File

/**
 * A bundle in a [BundleStore].
 *
 * @property name of its folder.
 * @property folder for [StreamFuse.load].
 * @property bytes of all files together.
 * @property id the SHA-256 of its manifest: that of the [CatalogEntry] with the same contents.
 */
public data class InstalledBundle(val name: String, val folder: File, val bytes: Long, val id: String)

/** What a bundle may have at most. The largest that phones run have a few dozen files and a few gigabytes. */
public data class BundleLimits(val files: Int = 1000, val bytes: Long = 16L shl 30, val depth: Int = 10)

/** How far a download or an import is. */
public sealed interface BundleProgress {
    /** So many bytes are here, of so many; null if the number is not known. */
    public data class Receiving(val doneBytes: Long, val totalBytes: Long?) : BundleProgress

    /** All bytes are here, and the library checks them. */
    public data object Checking : BundleProgress

    /** The last one: the bundle is in the store. */
    public data class Installed(val bundle: InstalledBundle) : BundleProgress
}
