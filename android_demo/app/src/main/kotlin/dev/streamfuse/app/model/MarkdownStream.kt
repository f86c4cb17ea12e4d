package dev.streamfuse.app.model

/**
 * Parses Markdown while it is generated. A part ends before a line that begins a new block at the margin; it is then
 * parsed for the last time. The open part is parsed again whenever it has grown by 1/[READ_AGAIN], so the total work is
 * linear in the length of the text.
 */
class MarkdownStream {
    private val text = StringBuilder()
    private val finished = mutableListOf<Block>()

    /** Blocks that no longer change. */
    val done: List<Block> get() = finished

    /** The blocks after [done], which may still change. */
    var open: List<Block> = emptyList()
        private set

    /** The number of characters parsed so far, counted each time that they are parsed. */
    var readLetters = 0L
        private set

    /** Index of the first character that is not in [done]. */
    var start = 0
        private set

    private var readTo = 0
    private var lineStart = 0 // of the first line that is not whole
    private var fence: String? = null // that opened the block of code which is not closed
    private var afterBlank = false
    private var inList = false

    /** Adds text. [isWhole] parses all of it now; otherwise the last characters may wait for later ones. */
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
        const val READ_AGAIN = 32
        val FENCE = Regex("^\\s*(`{3,}|~{3,})[^`]*$")
        val ITEM = Regex("^([-*+]|[0-9]{1,9}[.)])\\s")
    }
}
