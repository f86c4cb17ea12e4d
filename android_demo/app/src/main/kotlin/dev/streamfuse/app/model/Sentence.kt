package dev.streamfuse.app.model

import dev.streamfuse.StreamFuseException
import dev.streamfuse.app.R
import java.io.IOException

/** Something to tell the user. The screens turn it into text, so that models need no Android. */
sealed interface Sentence {
    /** A string resource and its arguments. */
    data class Words(val id: Int, val arguments: List<Any>) : Sentence

    /** A message of the library, shown unchanged. */
    data class Literal(val text: String) : Sentence
}

fun words(id: Int, vararg arguments: Any): Sentence = Sentence.Words(id, arguments.toList())

/** What the app itself could not do. */
class AppException(val sentence: Sentence) : Exception(sentence.toString())

fun sentenceOf(error: Throwable): Sentence = when (error) {
    is AppException -> error.sentence
    is StreamFuseException -> Sentence.Literal(error.message.orEmpty())
    is OutOfMemoryError -> words(R.string.error_memory)
    is IOException -> words(R.string.error_file, error.message ?: error.javaClass.simpleName)
    else -> words(R.string.error_other, error.message ?: error.javaClass.simpleName)
}
