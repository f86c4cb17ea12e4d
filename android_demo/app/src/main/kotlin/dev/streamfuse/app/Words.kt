package dev.streamfuse.app

import android.content.Context
import android.content.res.Configuration
import android.icu.text.DateFormat
import android.icu.text.RelativeDateTimeFormatter
import android.icu.text.RelativeDateTimeFormatter.Direction
import android.icu.text.RelativeDateTimeFormatter.RelativeUnit
import android.icu.util.ULocale
import android.text.format.Formatter
import android.view.View
import dev.streamfuse.app.model.Sentence
import java.util.Date
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

/** How long ago a time was, such as "5 minutes ago"; a date after a week. [DateUtils][android.text.format.DateUtils] has it only in the device's language. */
fun Context.since(timeMs: Long, nowMs: Long = System.currentTimeMillis()): String {
    val locale = ULocale.forLocale(language)
    val minutes = maxOf(0, nowMs - timeMs) / 60_000
    val (count, unit) = when {
        minutes < 60 -> minutes to RelativeUnit.MINUTES
        minutes < 24 * 60 -> minutes / 60 to RelativeUnit.HOURS
        minutes < 7 * 24 * 60 -> minutes / (24 * 60) to RelativeUnit.DAYS
        else -> return DateFormat.getDateInstance(DateFormat.MEDIUM, locale).format(Date(timeMs))
    }
    return RelativeDateTimeFormatter.getInstance(locale).format(count.toDouble(), Direction.LAST, unit)
}
