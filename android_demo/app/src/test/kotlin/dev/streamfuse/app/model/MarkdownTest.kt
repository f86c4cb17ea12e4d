package dev.streamfuse.app.model

import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test

/** Markdown, whole and while it is written. */
class MarkdownTest {
    private fun streamed(text: String, step: Int): MarkdownStream = MarkdownStream().apply {
        text.chunked(step).forEach { append(it) }
        append("", isWhole = true)
    }

    private fun prose(markdown: String) = blocksOf(markdown).single() as Prose

    private fun Prose.styled(look: Look) = styles.filter { it.look == look }.map { text.substring(it.start, it.end) }

    @Test fun `bold, italic, code and links are styles of their words`() {
        val prose = prose("A **bold *and italic*** word, `x = 1` and [a link](https://example.org).")
        assertEquals("A bold and italic word, x = 1 and a link.", prose.text)
        assertEquals(listOf("bold and italic"), prose.styled(Look.Bold))
        assertEquals(listOf("and italic"), prose.styled(Look.Italic))
        assertEquals(listOf("x = 1"), prose.styled(Look.Monospaced))
        assertEquals(listOf("a link"), prose.styled(Look.Linked("https://example.org")))
    }

    @Test fun `headings and lists have their looks, inner lists their own`() {
        val (head, list) = blocksOf("# Head\n\n3. three\n4. four\n   - inner\n").map { it as Prose }
        assertEquals(listOf("Head"), head.styled(Look.Headline(1)))
        assertEquals("3. three\n4. four\n◦  inner", list.text)
        assertEquals(listOf("3. three"), list.styled(Look.Item(1, "3. ")))
        assertEquals(listOf("◦  inner"), list.styled(Look.Item(2, "◦  ")))
    }

    @Test fun `code keeps its lines and its language, a table its columns, and tags are text`() {
        val blocks = blocksOf("```python\nif x:\n    y()\n```\n\n| a | long |\n|---|---|\n| wide | b |\n\n<b>tag</b>\n\n---\n")
        assertEquals(CodeBlock::class, blocks[0]::class)
        assertEquals("if x:\n    y()" to "python", blocks[0].text to (blocks[0] as CodeBlock).language)
        assertEquals("a     long\n────  ────\nwide  b", blocks[1].text)
        assertEquals("<b>tag</b>", blocks[2].text)
        assertEquals(Rule, blocks[3])
    }

    private val sample = listOf(
        "Some text with **bold** and\na second line.\n\n## A heading\n- one\n- two **x**\n  - inner\n- three\n\n",
        "1. first\n\n   more of it\n2. second\n\nText.\n\n```kotlin\nval a = 1\n\n# no heading\nval b = \"\"\"\n```\nAfter it.\n",
        "1986. A year in a line,\n1987. and another.\n\n| a | b |\n|---|---|\n| c | d |\n\n> quoted\n> twice\n\n---\nEnd",
    ).joinToString("")

    @Test fun `what is read while it is written is what is read at once, at any step`() {
        fun shown(blocks: List<Block>) = blocks.joinToString("\n") { it.text }
        val whole = shown(blocksOf(sample))
        for (step in listOf(1, 2, 3, 7, 50, 10_000)) {
            val stream = streamed(sample, step)
            assertEquals("step $step", whole, shown(stream.done + stream.open))
        }
    }

    @Test fun `what is done stays the same block`() {
        val stream = MarkdownStream()
        var done = emptyList<Block>()
        for (letter in sample) {
            stream.append(letter.toString())
            assertTrue(done.indices.all { stream.done[it] === done[it] })
            done = stream.done.toList()
        }
        assertTrue("${done.size}", done.size > 8)
    }

    @Test fun `each letter knows where it comes from`() {
        val stream = streamed(sample, 5)
        val blocks = stream.done + stream.open
        for (block in blocks) {
            for (origin in block.origins.filter { it.to - it.from == it.end - it.start }) {
                assertEquals(sample.substring(origin.from, origin.to), block.text.substring(origin.start, origin.end))
            }
        }
        assertTrue(blocks.filter { it is Prose || it is CodeBlock }.all { it.origins.isNotEmpty() })
    }

    @Test fun `a thousand tokens are read in work that grows as they do`() {
        val shapes = listOf("word ".repeat(4000), "- an item of a list\n".repeat(1000), "```\n" + "a line of code\n".repeat(1500))
        for (text in shapes) {
            fun work(length: Int) = streamed(text.take(length), 4).readLetters.toDouble() / length
            assertTrue("${work(20_000)} reads of each letter", work(20_000) < 40)
            assertTrue("it grows as the square", work(20_000) < 1.3 * work(10_000) + 1)
        }
    }
}
