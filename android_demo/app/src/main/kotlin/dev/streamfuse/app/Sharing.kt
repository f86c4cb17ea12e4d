package dev.streamfuse.app

import android.content.ClipData
import android.content.ClipboardManager
import android.content.Context
import android.content.Intent
import android.os.Build
import android.widget.Toast

/** Copies text to the clipboard and confirms it, which Android 13 and later do themselves. */
fun Context.copy(text: String) {
    val clip = ClipData.newPlainText(getString(R.string.app_name), text)
    getSystemService(ClipboardManager::class.java).setPrimaryClip(clip)
    if (Build.VERSION.SDK_INT < Build.VERSION_CODES.TIRAMISU) {
        Toast.makeText(this, R.string.copied, Toast.LENGTH_SHORT).show()
    }
}

/** Shares text through the system's chooser. */
fun Context.share(text: String, subject: String? = null) {
    val send = Intent(Intent.ACTION_SEND).setType("text/plain").putExtra(Intent.EXTRA_TEXT, text)
    if (subject != null) send.putExtra(Intent.EXTRA_SUBJECT, subject)
    startActivity(Intent.createChooser(send, getString(R.string.share)))
}
