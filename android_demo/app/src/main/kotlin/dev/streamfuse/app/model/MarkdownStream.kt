package dev.streamfuse.app.model

/**
 * Markdown that is read while it is written. What has come to its end is read once: a part ends before a line that begins
 * something new at the margin. The last part is read again as it grows, and the longer it is the less often, so that all
 * the work together grows as the text does.
 */
class MarkdownStream {
    private val text = StringBuilder()
    private val finished = mutableListOf<Block>()

    /** Blocks that stay what they are; more may follow. */
    val done: List<Block> get() = finished

    /** The blocks after [done], which may change. */
    var open: List<Block> = emptyList()
        private set

    /** How many letters have been read so far, those that were read twice twice. */
    var readLetters = 0L
        private set

    /** Where the text begins that is not [done]. */
    var start = 0
        private set

    private var readTo = 0
    private var lineStart = 0 // of the first line that is not whole
    private var fence: String? = null // that opened the block of code which is not closed
    private var afterBlank = false
    private var inList = false

    /** Adds text, and reads it: at once where [isWhole], else maybe with a later part. */
    fun append(more: CharSequence, isWhole: Boolean = false) {
        text.append(more)
        while (true) {
            val end = text.indexOf("\n", lineStart)
            if (end < 0) break
            take(lineStart, end)
            lineStart = end + 1
        }
        val unread = text.length - readTo
        if (unread > 0 && (isWhole || unread * READ_AGAIN >= text.length - start)) {
            open = read(text.length)
            readTo = text.length
        }
    }

    /** A whole line. */
    private fun take(from: Int, to: Int) {
        val line = text.substring(from, to)
        val ticks = FENCE.find(line)?.groupValues?.get(1)
        val opened = fence
        if (opened != null) {
            if (ticks != null && ticks[0] == opened[0] && ticks.length >= opened.length && line.trim() == ticks) {
                fence = null
                if (!line[0].isWhitespace()) finish(to + 1)
            }
            return
        }
        val isItem = ITEM.containsMatchIn(line)
        val isBlank = line.isBlank()
        val isNew = afterBlank || line.startsWith('#') || ticks != null || isItem && inList
        if (!isBlank && !line[0].isWhitespace()) {
            if (isNew) finish(from)
            if (isNew || start == from) inList = isItem
        }
        fence = ticks
        afterBlank = isBlank
    }

    private fun finish(end: Int) {
        if (end <= start) return
        finished += read(end)
        start = end
        readTo = end
        open = emptyList()
        afterBlank = false
        inList = false
    }

    private fun read(end: Int): List<Block> {
        readLetters += end - start
        return blocksOf(text.substring(start, end), start)
    }

    private companion object {
        /** The part that is open is read again when it has grown by one letter in so many. */
        const val READ_AGAIN = 32
        val FENCE = Regex("^\\s*(`{3,}|~{3,})[^`]*$")
        val ITEM = Regex("^([-*+]|[0-9]{1,9}[.)])\\s")
    }
}
