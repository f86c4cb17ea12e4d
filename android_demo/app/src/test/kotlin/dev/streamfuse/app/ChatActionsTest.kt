package dev.streamfuse.app

import android.app.AlertDialog
import android.content.ClipboardManager
import android.content.Intent
import android.text.SpannableString
import android.view.KeyEvent
import android.view.View
import android.widget.EditText
import android.widget.ListView
import android.widget.TextView
import dev.streamfuse.GenerationConfig
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowAlertDialog

/** What is done with chats and their messages. */
@Config(qualifiers = Device.PHONE)
class ChatActionsTest : ChatScreen() {
    @Test fun `a new chat keeps the old one, which is opened, renamed, deleted and restored from the list`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        val controller = openChat()
        val screen = controller.get()
        val first = screen.answerTo("Hello")
        screen.onOptionsItemSelected(menuItem(R.id.new_chat))
        until { screen.conversation().isEmpty() }
        assertTrue("an empty chat offers questions", screen.shown(R.id.suggestions))
        screen.answerTo("Something else")
        val list = open(ChatsActivity::class.java).get()
        until { list.titles() == listOf("Something else", "Hello") }
        list.row("Hello").performClick()
        assertTrue(list.isFinishing)
        until { screen.conversation() == listOf("Hello", first) }
        list.row("Hello").findViewById<View>(R.id.chat_more)!!.performClick()
        chooseFromMenu(R.id.rename)
        ShadowAlertDialog.getLatestAlertDialog()!!.findViewById<EditText>(R.id.field)!!.setText("Greetings")
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        until { "Greetings" in list.titles() }
        picture(list, "chats-light")
        list.row("Greetings").findViewById<View>(R.id.chat_more)!!.performClick()
        chooseFromMenu(R.id.delete_chat)
        until { list.titles() == listOf("Something else") && screen.conversation().isEmpty() }
        assertEquals("Greetings is deleted.", list.text(R.id.deleted).text.toString())
        list.press(R.id.undo)
        until { "Greetings" in list.titles() && screen.conversation().size == 2 }
        list.type(R.id.search, "fish")
        until { list.text(R.id.no_chats).isShown }
        assertEquals("No chat has these words.", list.text(R.id.no_chats).text.toString())
        list.type(R.id.search, "")
        val again = endProcess(controller, ChatActivity::class.java).get()
        until { again.conversation().size == 2 }
    }

    private fun ChatsActivity.rows(): List<View> = findViewById<ListView>(R.id.chat_list)!!.let { list ->
        (0 until list.childCount).map(list::getChildAt)
    }

    private fun View.title() = findViewById<TextView>(R.id.chat_title)!!.text.toString()

    private fun ChatsActivity.titles() = rows().map { it.title() }

    private fun ChatsActivity.row(title: String) = rows().first { it.title() == title }

    @Test fun `an answer is copied, shared and asked for again, and a question is edited`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        val screen = openChat().get()
        val first = screen.answerTo("Hello")
        screen.press(R.id.copy)
        assertEquals(first, app.getSystemService(ClipboardManager::class.java)!!.primaryClip!!.getItemAt(0).text)
        screen.press(R.id.share)
        @Suppress("DEPRECATION")
        val shared = shadowOf(screen).nextStartedActivity.getParcelableExtra<Intent>(Intent.EXTRA_INTENT)!!
        assertEquals(first, shared.getStringExtra(Intent.EXTRA_TEXT))
        screen.press(R.id.retry)
        ready()
        until { screen.conversation().size == 2 && screen.shown(R.id.chip) }
        screen.press(R.id.question)
        chooseFromMenu(R.id.edit)
        ShadowAlertDialog.getLatestAlertDialog()!!.findViewById<EditText>(R.id.field)!!.setText("What is the capital of France?")
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        until { screen.conversation().firstOrNull() == "What is the capital of France?" && phase == Phase.READY }
        idle()
        assertEquals(library(GenerationConfig(), "What is the capital of France?" to 8), listOf(screen.conversation()[1]))
    }

    @Test fun `an open edit dialog survives rotation`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        val controller = openChat()
        controller.get().answerTo("Hello")
        controller.get().press(R.id.question)
        chooseFromMenu(R.id.edit)
        typeAndTurn(controller, "What is the capital of France?")
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        until { controller.get().conversation().firstOrNull() == "What is the capital of France?" && phase == Phase.READY }
        assertEquals(2, controller.get().conversation().size)
    }

    @Test fun `an open dialog for a title survives rotation`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        openChat().get().answerTo("Hello")
        val controller = open(ChatsActivity::class.java)
        until { controller.get().titles() == listOf("Hello") }
        controller.get().row("Hello").findViewById<View>(R.id.chat_more)!!.performClick()
        chooseFromMenu(R.id.rename)
        typeAndTurn(controller, "Greetings")
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        until { parts.chats.state.value.chats.map { it.title } == listOf("Greetings") }
    }

    @Test fun `an edited question that cannot be asked now stands in the field, before what is there`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        val screen = openChat().get()
        val before = listOf("Hello", screen.answerTo("Hello"))
        screen.type(R.id.input, "typed before")
        screen.press(R.id.question)
        chooseFromMenu(R.id.edit)
        val field = ShadowAlertDialog.getLatestAlertDialog()!!.findViewById<EditText>(R.id.field)!!
        parts.rest() // the model is loaded again while the dialog is open
        until { phase == Phase.LOADING }
        field.setText("What is the capital of France?")
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        idle()
        assertEquals("What is the capital of France?\ntyped before", screen.text(R.id.input).text.toString())
        parts.back()
        ready()
        until { screen.conversation() == before }
    }

    @Test fun `an edited question is not asked in another chat`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "8")
        val screen = openChat().get()
        screen.answerTo("Hello")
        val first = parts.chat.state.value.chat!!
        screen.onOptionsItemSelected(menuItem(R.id.new_chat))
        until { screen.conversation().isEmpty() }
        val second = listOf("Something else", screen.answerTo("Something else"))
        val id = parts.chat.state.value.chat!!
        parts.chat.openChat(first)
        until { screen.conversation().firstOrNull() == "Hello" && phase == Phase.READY }
        screen.press(R.id.question)
        chooseFromMenu(R.id.edit)
        parts.chat.openChat(id) // as where the process ends meanwhile, and the next one opens the latest chat
        until { screen.conversation() == second && phase == Phase.READY }
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        until { screen.text(R.id.input).text.toString() == "Hello" }
        assertEquals(second, screen.conversation())
    }

    @Test fun `what another app shares stands in the field, and Enter of a keyboard sends it`() {
        install("demo")
        parts.settings.set(Field.MAX_NEW_TOKENS, "4")
        val intent = Intent(Intent.ACTION_SEND).setType("text/plain").putExtra(Intent.EXTRA_TEXT, "Hello")
        val controller = open(ChatActivity::class.java, intent)
        val screen = controller.get()
        ready()
        assertEquals("Hello", screen.text(R.id.input).text.toString())
        controller.newIntent(Intent(Intent.ACTION_SEND).setType("text/plain").putExtra(Intent.EXTRA_TEXT, "And hello"))
        assertEquals("what is typed stays", "And hello\nHello", screen.text(R.id.input).text.toString())
        val shift = KeyEvent(0, 0, KeyEvent.ACTION_DOWN, KeyEvent.KEYCODE_ENTER, 0, KeyEvent.META_SHIFT_ON)
        screen.findViewById<View>(R.id.input)!!.dispatchKeyEvent(shift)
        assertEquals("with Shift it begins a line", Phase.READY, phase)
        screen.type(R.id.input, "Hello")
        screen.findViewById<View>(R.id.input)!!.dispatchKeyEvent(KeyEvent(KeyEvent.ACTION_DOWN, KeyEvent.KEYCODE_ENTER))
        until { parts.chat.state.value.turns.size == 2 && phase == Phase.READY }
    }

    @Test fun `styled shared text is accepted, and not inserted again when the app is reopened from Recents`() {
        install("demo")
        val shared = Intent(Intent.ACTION_SEND).setType("text/plain").putExtra(Intent.EXTRA_TEXT, SpannableString("Hello"))
        val screen = open(ChatActivity::class.java, shared).get()
        ready()
        assertEquals("Hello", screen.text(R.id.input).text.toString())
        val again = Intent(shared).addFlags(Intent.FLAG_ACTIVITY_LAUNCHED_FROM_HISTORY)
        val later = open(ChatActivity::class.java, again).get()
        ready()
        assertEquals("", later.text(R.id.input).text.toString())
    }
}
