package dev.streamfuse.app

import android.os.Build
import android.view.View
import android.view.Window
import android.view.WindowInsets

/**
 * Draws the window behind the system's bars, as Android 15 does in any case, and keeps [content] clear of them, of
 * cutouts and of the keyboard. Before Android 11, the system itself keeps the window clear.
 *
 * @param list what scrolls down to the lower edge of [content]: it continues behind the navigation bar, and its last row
 *   can be scrolled above it. Null: everything ends above the bar.
 */
fun Window.keepClear(content: View, list: View?) {
    if (Build.VERSION.SDK_INT < Build.VERSION_CODES.R) return
    setDecorFitsSystemWindows(false)
    content.setOnApplyWindowInsetsListener { _, insets ->
        val bars = insets.getInsets(WindowInsets.Type.systemBars() or WindowInsets.Type.displayCutout())
        val keyboard = insets.getInsets(WindowInsets.Type.ime()).bottom
        // The keyboard covers the navigation bar. A list ends above it, so that the field with the focus is not behind it.
        val behind = if (list != null && keyboard == 0) bars.bottom else 0
        content.setPadding(bars.left, bars.top, bars.right, maxOf(bars.bottom, keyboard) - behind)
        list?.setPadding(0, 0, 0, behind)
        WindowInsets.CONSUMED
    }
}
