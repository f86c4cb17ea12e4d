package dev.streamfuse.app

import android.content.Context
import android.content.res.Configuration
import android.text.format.Formatter
import android.view.View
import dev.streamfuse.app.model.Sentence
import java.util.Locale

/**
 * The language of the app's texts, which differs from the device's if they are not translated to it. Numbers and units
 * use it too: Arabic numbers in an English sentence would be read in the other direction.
 */
val Context.language: Locale get() = Locale.forLanguageTag(getString(R.string.language))

/** A string resource with arguments, as [String.format] takes them. */
fun Context.formatted(id: Int, vararg arguments: Any?): String = getString(id).format(language, *arguments)

/**
 * As [formatted], but a right-to-left layout isolates each text argument (Unicode FSI and PDI). Otherwise an English
 * sentence that begins with an Arabic name would change its direction.
 */
fun Context.textOf(id: Int, vararg arguments: Any?): String {
    if (resources.configuration.layoutDirection != View.LAYOUT_DIRECTION_RTL) return formatted(id, *arguments)
    val isolated = arguments.map { if (it is CharSequence) "\u2068$it\u2069" else it }
    return formatted(id, *isolated.toTypedArray())
}

fun Context.textOf(sentence: Sentence): String = when (sentence) {
    is Sentence.Literal -> sentence.text
    is Sentence.Words -> textOf(sentence.id, *sentence.arguments.toTypedArray())
}

/** A number of bytes, in the unit that suits its size, such as MB. */
fun Context.sizeOf(bytes: Long): String {
    val words = Configuration(resources.configuration).apply { setLocale(language) }
    return Formatter.formatShortFileSize(createConfigurationContext(words), bytes)
}
