package dev.streamfuse.app

import android.Manifest
import android.app.Activity
import android.content.ActivityNotFoundException
import android.content.Intent
import android.content.pm.PackageManager
import android.os.Build
import android.os.Bundle
import android.view.View
import android.view.inputmethod.EditorInfo
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ProgressBar
import android.widget.RadioButton
import android.widget.TextView
import dev.streamfuse.BundleProgress
import dev.streamfuse.InstalledBundle
import dev.streamfuse.app.model.BundlesState
import dev.streamfuse.app.model.Offer
import dev.streamfuse.app.model.OfferState

class BundlesActivity : Screen<BundlesState>(R.layout.bundles, list = R.id.scroll) {
    override val state get() = parts.bundles.state
    private var shownBundles: Pair<List<InstalledBundle>?, String?>? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        view<View>(R.id.cancel).setOnClickListener { whenReady { it.bundles.cancel() } }
        view<View>(R.id.import_folder).setOnClickListener { pick(Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), FOLDER) }
        view<View>(R.id.import_zip).setOnClickListener {
            val zip = Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE).setType("*/*")
            val types = arrayOf("application/zip", "application/x-zip-compressed", "application/octet-stream")
            pick(zip.putExtra(Intent.EXTRA_MIME_TYPES, types), ZIP)
        }
        val catalog = view<EditText>(R.id.catalog)
        view<View>(R.id.catalog_show).setOnClickListener { whenReady { it.bundles.ask(catalog.text.toString()) } }
        catalog.setOnEditorActionListener { _, action, _ ->
            (action == EditorInfo.IME_ACTION_GO).also { go -> if (go) view<View>(R.id.catalog_show).performClick() }
        }
    }

    override fun onReady() {
        val catalog = view<EditText>(R.id.catalog)
        if (catalog.text.isEmpty()) catalog.setText(state.value.catalog)
    }

    @Deprecated("The framework has no other way without AndroidX.")
    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val uri = data?.data
        if (resultCode != Activity.RESULT_OK || uri == null) return
        val resolver = applicationContext.contentResolver // an import outlives this screen
        whenReady { parts ->
            val import = parts.bundles.import { if (requestCode == FOLDER) TreeSource(resolver, uri) else zipSource(resolver, uri) }
            if (import != null) resolver.keepGrant(uri, import)
        }
    }

    override fun show(state: BundlesState) {
        val busy = state.importing != null
        view<View>(R.id.scroll).keepScreenOn = busy || state.offers.any { it.state is OfferState.Downloading }
        view<View>(R.id.none).shown(state.installed?.isEmpty() == true && !busy)
        if (shownBundles != state.installed to state.chosen) showList(state)
        view<TextView>(R.id.message).show(state.message)
        view<View>(R.id.importing).shown(busy)
        state.importing?.let(::showProgress)
        view<View>(R.id.import_folder).shown(!busy)
        view<View>(R.id.import_zip).shown(!busy)
        view<View>(R.id.catalog_show).isEnabled = !state.asking
        view<View>(R.id.asking).shown(state.asking)
        showOffers(state.offers)
    }

    /** Rows stay where they are while a download goes on, so that a finger or a screen reader does not lose them. */
    private fun showOffers(offers: List<Offer>) {
        val list = view<LinearLayout>(R.id.offers)
        while (list.childCount > offers.size) list.removeViewAt(list.childCount - 1)
        while (list.childCount < offers.size) list.addView(layoutInflater.inflate(R.layout.offer, list, false)!!)
        offers.forEachIndexed { place, offer -> showOffer(list.getChildAt(place), offer) }
    }

    private fun showOffer(row: View, offer: Offer) {
        val entry = offer.entry
        val state = offer.state
        row.findViewById<TextView>(R.id.title)!!.show(entry.title)
        val licence = entry.license ?: getString(R.string.licence_unknown)
        row.findViewById<TextView>(R.id.facts)!!.show(textOf(R.string.offer_facts, sizeOf(entry.bytes), licence, entry.contextLength))
        row.findViewById<TextView>(R.id.offer_state)!!.show(
            offer.error?.let(::textOf) ?: when (state) {
                is OfferState.Available -> null
                is OfferState.Unsupported -> textOf(R.string.offer_unsupported, state.reason)
                is OfferState.Downloading -> textOf(R.string.downloading_of, sizeOf(state.doneBytes), sizeOf(entry.bytes))
                is OfferState.Checking -> getString(R.string.checking)
                is OfferState.Paused -> textOf(R.string.offer_paused, sizeOf(state.doneBytes), sizeOf(entry.bytes))
                is OfferState.Installed -> getString(R.string.offer_installed)
            },
        )
        row.findViewById<ProgressBar>(R.id.offer_progress)!!.run {
            val done = (state as? OfferState.Downloading)?.doneBytes ?: (state as? OfferState.Paused)?.doneBytes
            shown(done != null || state is OfferState.Checking)
            isIndeterminate = state is OfferState.Checking
            max = 1000
            if (done != null) progress = (1000 * done / maxOf(1, entry.bytes)).toInt()
        }
        val paused = state is OfferState.Paused
        row.findViewById<Button>(R.id.download)!!.run {
            shown(paused || state is OfferState.Available)
            text = getString(if (paused) R.string.resume else R.string.download)
            contentDescription = textOf(if (paused) R.string.resume_named else R.string.download_named, entry.title)
            setOnClickListener {
                parts.bundles.download(entry)
                askForNotifications()
            }
        }
        row.findViewById<View>(R.id.pause)!!.run {
            shown(state is OfferState.Downloading)
            contentDescription = textOf(R.string.pause_named, entry.title)
            setOnClickListener { parts.bundles.pause(entry) }
        }
        row.findViewById<View>(R.id.discard)!!.run {
            shown(paused)
            contentDescription = textOf(R.string.discard_named, entry.title)
            setOnClickListener { parts.bundles.discard(entry) }
        }
    }

    /**
     * Requests the permission that the notification of a [DownloadJob] needs. The download does not wait for the answer
     * and does not depend on it. After a refusal it is not requested again.
     */
    private fun askForNotifications() {
        if (Build.VERSION.SDK_INT < Build.VERSION_CODES.UPSIDE_DOWN_CAKE) return // no job, no notification
        val permission = Manifest.permission.POST_NOTIFICATIONS
        if (checkSelfPermission(permission) == PackageManager.PERMISSION_GRANTED) return
        if (shouldShowRequestPermissionRationale(permission)) return // the user has refused it
        requestPermissions(arrayOf(permission), NOTIFICATIONS)
    }

    private fun showList(state: BundlesState) {
        shownBundles = state.installed to state.chosen
        val list = view<LinearLayout>(R.id.list)
        list.removeAllViews()
        for (bundle in state.installed.orEmpty()) {
            val row = layoutInflater.inflate(R.layout.bundle, list, false)!!
            list.addView(row)
            val chosen = bundle.name == state.chosen
            val size = sizeOf(bundle.bytes)
            row.findViewById<RadioButton>(R.id.use)!!.run {
                text = textOf(R.string.bundle_row, bundle.name, size)
                contentDescription = textOf(if (chosen) R.string.in_use else R.string.use_named, bundle.name, size)
                isChecked = chosen
                isSaveEnabled = false // the rows share their ids
                setOnClickListener { parts.bundles.choose(bundle.name) }
            }
            row.findViewById<View>(R.id.delete)!!.run {
                contentDescription = textOf(R.string.delete_named, bundle.name)
                setOnClickListener { askToDelete(bundle.name) }
            }
        }
    }

    private fun showProgress(progress: BundleProgress) {
        val receiving = progress as? BundleProgress.Receiving
        val done = receiving?.doneBytes ?: 0
        val total = receiving?.totalBytes?.takeIf { it > 0 }
        view<ProgressBar>(R.id.progress).run {
            isIndeterminate = total == null
            max = 1000
            if (total != null) this.progress = (1000 * done / total).toInt()
        }
        view<TextView>(R.id.progress_text).text = when {
            receiving == null -> getString(R.string.checking)
            total == null -> textOf(R.string.copying, sizeOf(done))
            else -> textOf(R.string.copying_of, sizeOf(done), sizeOf(total))
        }
    }

    private fun askToDelete(name: String) =
        askWhether(R.string.delete_question, name, R.string.delete) { parts.bundles.delete(name) }

    override fun askAgain(title: Int, about: String, text: String) {
        if (title == R.string.delete_question) askToDelete(about) else super.askAgain(title, about, text)
    }

    private fun pick(intent: Intent, request: Int) = try {
        @Suppress("DEPRECATION") // the framework has no other way without AndroidX
        startActivityForResult(intent, request)
    } catch (_: ActivityNotFoundException) {
        view<TextView>(R.id.message).show(getString(R.string.error_no_picker))
    }

    companion object {
        const val FOLDER = 1
        const val ZIP = 2
        private const val NOTIFICATIONS = 3
    }
}
