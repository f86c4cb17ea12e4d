package dev.streamfuse.app.model

import org.commonmark.ext.gfm.tables.TableBlock
import org.commonmark.ext.gfm.tables.TablesExtension
import org.commonmark.node.AbstractVisitor
import org.commonmark.node.Block as MarkdownBlock
import org.commonmark.node.BlockQuote
import org.commonmark.node.BulletList
import org.commonmark.node.Code
import org.commonmark.node.CustomBlock
import org.commonmark.node.Emphasis
import org.commonmark.node.FencedCodeBlock
import org.commonmark.node.HardLineBreak
import org.commonmark.node.Heading
import org.commonmark.node.HtmlInline
import org.commonmark.node.Link
import org.commonmark.node.ListBlock
import org.commonmark.node.ListItem
import org.commonmark.node.Node
import org.commonmark.node.OrderedList
import org.commonmark.node.Paragraph
import org.commonmark.node.SoftLineBreak
import org.commonmark.node.StrongEmphasis
import org.commonmark.node.Text
import org.commonmark.node.ThematicBreak
import org.commonmark.parser.IncludeSourceSpans
import org.commonmark.parser.Parser

/** A part of an answer that has a view of its own. */
sealed interface Block {
    /** The text to show, without Markdown syntax. */
    val text: String

    /** Where [text] comes from in the answer. */
    val origins: List<Origin>
}

/** Paragraphs, headings and lists: text in several styles. */
data class Prose(override val text: String, val styles: List<Style>, override val origins: List<Origin>) : Block

/** A fenced code block. [language] is empty if the fence names none. */
data class CodeBlock(override val text: String, val language: String, override val origins: List<Origin>) : Block

/** A table, its columns aligned for a monospaced font. */
data class TableText(override val text: String) : Block {
    override val origins: List<Origin> get() = emptyList()
}

/** A thematic break. */
data object Rule : Block {
    override val text get() = ""
    override val origins: List<Origin> get() = emptyList()
}

/** The style of the characters from [start] to [end] (exclusive) of a block's text. */
data class Style(val start: Int, val end: Int, val look: Look)

sealed interface Look {
    data object Bold : Look

    data object Italic : Look

    data object Monospaced : Look

    data object Quoted : Look

    data class Headline(val level: Int) : Look

    data class Linked(val address: String) : Look

    /** An item of a list at nesting [depth], from 1; its text begins with [mark]. */
    data class Item(val depth: Int, val mark: String) : Look
}

/** [start] to [end] of a block's text come from [from] to [to] of the answer; indices of characters, ends exclusive. */
data class Origin(val start: Int, val end: Int, val from: Int, val to: Int) {
    /** The part of the block's text that comes from [range] of the answer; null if there is none. */
    fun shownOf(range: IntRange): IntRange? {
        val (first, last) = maxOf(range.first, from) to minOf(range.last, to - 1)
        if (first > last) return null
        return if (to - from == end - start) start + first - from..start + last - from else start until end
    }
}

private val parser: Parser = Parser.builder()
    .extensions(listOf(TablesExtension.create()))
    // Without indented code and HTML blocks: both are plain text in a model's answer.
    .enabledBlockTypes(
        setOf<Class<out MarkdownBlock>>(
            Heading::class.java, ListBlock::class.java, BlockQuote::class.java, FencedCodeBlock::class.java,
            ThematicBreak::class.java,
        ),
    )
    .includeSourceSpans(IncludeSourceSpans.BLOCKS_AND_INLINES)
    .build()

/** The blocks of Markdown text that begins at [offset] of its answer. */
fun blocksOf(markdown: String, offset: Int = 0): List<Block> {
    val reader = MarkdownReader(offset)
    parser.parse(markdown).accept(reader)
    return reader.finish()
}

private class MarkdownReader(private val offset: Int) : AbstractVisitor() {
    private val blocks = mutableListOf<Block>()
    private val text = StringBuilder()
    private val styles = mutableListOf<Style>()
    private val origins = mutableListOf<Origin>()
    private var depth = 0
    private var atMark = false // of an item: its first paragraph goes on in its line

    fun finish(): List<Block> {
        endProse()
        return blocks
    }

    private fun endProse() {
        if (text.isNotEmpty()) blocks += Prose(text.toString(), styles.toList(), origins.toList())
        text.clear()
        styles.clear()
        origins.clear()
    }

    private fun styled(look: Look, write: () -> Unit) {
        val start = text.length
        write()
        if (text.length > start) styles += Style(start, text.length, look)
    }

    private fun beginLine() {
        if (text.isNotEmpty() && !atMark) text.append('\n')
        atMark = false
    }

    override fun visit(paragraph: Paragraph) {
        if (depth == 0 && paragraph.parent !is BlockQuote) endProse()
        beginLine()
        visitChildren(paragraph)
    }

    override fun visit(heading: Heading) {
        if (depth == 0) endProse()
        beginLine()
        styled(Look.Headline(heading.level)) { visitChildren(heading) }
    }

    override fun visit(quote: BlockQuote) {
        if (depth == 0) endProse()
        styled(Look.Quoted) { visitChildren(quote) }
    }

    override fun visit(list: BulletList) = items(list) { if (depth % 2 == 1) "•  " else "◦  " }

    override fun visit(list: OrderedList) {
        val first = list.markerStartNumber ?: 1
        items(list) { index -> "${first + index}. " }
    }

    private fun items(list: ListBlock, mark: (Int) -> String) {
        if (depth == 0) endProse()
        depth++
        list.children().filterIsInstance<ListItem>().forEachIndexed { index, item ->
            beginLine()
            val begin = mark(index)
            val start = text.length
            text.append(begin)
            atMark = true
            for (child in item.children()) {
                // An inner list has margins of its own.
                if (child is ListBlock && text.length > start) styles += Style(start, text.length, Look.Item(depth, begin))
                child.accept(this)
            }
            if (item.lastChild !is ListBlock && text.length > start) {
                styles += Style(start, text.length, Look.Item(depth, begin))
            }
            atMark = false
        }
        depth--
    }

    override fun visit(code: FencedCodeBlock) {
        endProse()
        atMark = false
        val content = code.literal.removeSuffix("\n")
        val spans = code.sourceSpans.drop(1).iterator() // after the line that opens it; empty lines have none
        var start = 0
        val from = mutableListOf<Origin>()
        for (line in content.split('\n')) {
            if (line.isNotEmpty() && spans.hasNext()) {
                val end = spans.next().run { offset + inputIndex + length }
                from += Origin(start, start + line.length, end - line.length, end)
            }
            start += line.length + 1
        }
        blocks += CodeBlock(content, code.info.orEmpty().substringBefore(' '), from)
    }

    override fun visit(line: ThematicBreak) {
        endProse()
        blocks += Rule
    }

    override fun visit(block: CustomBlock) {
        endProse()
        if (block is TableBlock) blocks += TableText(tableOf(block))
    }

    override fun visit(emphasis: Emphasis) = styled(Look.Italic) { visitChildren(emphasis) }

    override fun visit(strong: StrongEmphasis) = styled(Look.Bold) { visitChildren(strong) }

    override fun visit(link: Link) = styled(Look.Linked(link.destination)) { visitChildren(link) }

    override fun visit(code: Code) = styled(Look.Monospaced) { write(code, code.literal) }

    override fun visit(literal: Text) = write(literal, literal.literal)

    override fun visit(html: HtmlInline) = write(html, html.literal)

    override fun visit(lineBreak: SoftLineBreak) {
        text.append('\n')
    }

    override fun visit(lineBreak: HardLineBreak) {
        text.append('\n')
    }

    private fun write(node: Node, literal: String) {
        val start = text.length
        text.append(literal)
        val from = node.sourceSpans.firstOrNull()?.inputIndex ?: return
        val to = node.sourceSpans.last().run { inputIndex + length }
        val around = if (node is Code) (to - from - literal.length) / 2 else 0 // the backticks
        origins += Origin(start, text.length, offset + from + around, offset + to - around)
    }
}

/** Columns side by side; a line below the head. */
private fun tableOf(table: TableBlock): String {
    val rows = table.children().flatMap { it.children() }.map { row -> row.children().map(::plainText) }
    fun cell(row: List<String>, column: Int) = row.getOrElse(column) { "" }
    val widths = rows.first().indices.map { column -> rows.maxOf { cell(it, column).width() } }
    val lines = rows.map { row ->
        widths.mapIndexed { column, width -> cell(row, column).let { it + " ".repeat(width - it.width()) } }
            .joinToString("  ").trimEnd()
    }
    return (lines.take(1) + widths.joinToString("  ") { "─".repeat(it) } + lines.drop(1)).joinToString("\n")
}

private fun String.width(): Int = codePointCount(0, length)

private fun Node.children(): List<Node> = generateSequence(firstChild) { it.next }.toList()

private fun plainText(node: Node): String = when (node) {
    is Text -> node.literal
    is Code -> node.literal
    is HtmlInline -> node.literal
    is SoftLineBreak, is HardLineBreak -> " "
    else -> node.children().joinToString("", transform = ::plainText)
}
