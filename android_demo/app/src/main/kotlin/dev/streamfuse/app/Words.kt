package dev.streamfuse.app

import android.content.Context
import android.content.res.Configuration
import android.text.format.Formatter
import android.view.View
import dev.streamfuse.app.model.Sentence
import java.util.Locale

/**
 * The language of the app's words, which is not that of the device where they are not translated. Numbers and units are
 * written in it: Arabic ones in an English sentence would be read in the other direction.
 */
val Context.language: Locale get() = Locale.forLanguageTag(getString(R.string.language))

/** A string resource with arguments, as [String.format] takes them. */
fun Context.formatted(id: Int, vararg arguments: Any?): String = getString(id).format(language, *arguments)

/**
 * The same. In a layout from right to left each argument that is text is isolated (Unicode's FSI and PDI), or a name in
 * Arabic would change the direction of an English sentence that begins with it.
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

/** A number of bytes in the largest unit that it has. */
fun Context.sizeOf(bytes: Long): String {
    val words = Configuration(resources.configuration).apply { setLocale(language) }
    return Formatter.formatShortFileSize(createConfigurationContext(words), bytes)
}
