package dev.streamfuse.app

import android.app.Activity
import android.app.AlertDialog
import android.content.ActivityNotFoundException
import android.content.Intent
import android.os.Bundle
import android.text.format.Formatter
import android.view.View
import android.widget.LinearLayout
import android.widget.ProgressBar
import android.widget.RadioButton
import android.widget.TextView
import dev.streamfuse.app.model.BundlesState
import dev.streamfuse.app.model.ImportProgress
import dev.streamfuse.app.model.ImportStep
import dev.streamfuse.app.model.Installed

class BundlesActivity : Screen<BundlesState>(R.layout.bundles) {
    override val state get() = parts.bundles.state
    private var shownBundles: Pair<List<Installed>, String?>? = null

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        view<View>(R.id.cancel).setOnClickListener { whenReady { it.bundles.cancel() } }
        view<View>(R.id.import_folder).setOnClickListener { pick(Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), FOLDER) }
        view<View>(R.id.import_zip).setOnClickListener {
            val zip = Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE).setType("*/*")
            pick(zip.putExtra(Intent.EXTRA_MIME_TYPES, arrayOf("application/zip", "application/octet-stream")), ZIP)
        }
    }

    @Deprecated("The framework has no other way without AndroidX.")
    override fun onActivityResult(requestCode: Int, resultCode: Int, data: Intent?) {
        val uri = data?.data
        if (resultCode != Activity.RESULT_OK || uri == null) return
        whenReady { parts ->
            parts.bundles.import { if (requestCode == FOLDER) TreeSource(contentResolver, uri) else zipSource(contentResolver, uri) }
        }
    }

    override fun show(state: BundlesState) {
        val busy = state.importing != null
        view<View>(R.id.scroll).keepScreenOn = busy
        view<View>(R.id.none).shown(state.installed.isEmpty() && !busy)
        if (shownBundles != state.installed to state.chosen) showList(state)
        view<TextView>(R.id.message).say(state.message)
        view<View>(R.id.importing).shown(busy)
        state.importing?.let(::showProgress)
        view<View>(R.id.import_folder).shown(!busy)
        view<View>(R.id.import_zip).shown(!busy)
    }

    private fun showList(state: BundlesState) {
        shownBundles = state.installed to state.chosen
        val list = view<LinearLayout>(R.id.list)
        list.removeAllViews()
        for (bundle in state.installed) {
            val row = layoutInflater.inflate(R.layout.bundle, list, false)!!
            list.addView(row)
            val chosen = bundle.name == state.chosen
            val size = Formatter.formatShortFileSize(this, bundle.bytes)!!
            row.findViewById<RadioButton>(R.id.use)!!.run {
                text = getString(R.string.bundle_row, bundle.name, size)
                contentDescription = getString(if (chosen) R.string.in_use else R.string.use_named, bundle.name, size)
                isChecked = chosen
                isSaveEnabled = false // the rows share their ids
                setOnClickListener { parts.bundles.choose(bundle.name) }
            }
            row.findViewById<View>(R.id.delete)!!.run {
                contentDescription = getString(R.string.delete_named, bundle.name)
                setOnClickListener { askToDelete(bundle.name) }
            }
        }
    }

    private fun showProgress(progress: ImportProgress) {
        val total = progress.totalBytes?.takeIf { it > 0 }
        view<ProgressBar>(R.id.progress).run {
            isIndeterminate = total == null || progress.step == ImportStep.CHECKING
            max = 1000
            if (total != null) this.progress = (1000 * progress.doneBytes / total).toInt()
        }
        view<TextView>(R.id.progress_text).text = when {
            progress.step == ImportStep.CHECKING -> getString(R.string.checking)
            total == null -> getString(R.string.copying, size(progress.doneBytes))
            else -> getString(R.string.copying_of, size(progress.doneBytes), size(total))
        }
    }

    private fun size(bytes: Long) = Formatter.formatShortFileSize(this, bytes)

    private fun askToDelete(name: String) {
        AlertDialog.Builder(this)
            .setMessage(getString(R.string.delete_question, name))
            .setPositiveButton(R.string.delete) { _, _ -> parts.bundles.delete(name) }
            .setNegativeButton(R.string.cancel, null)
            .show()
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
    }
}
