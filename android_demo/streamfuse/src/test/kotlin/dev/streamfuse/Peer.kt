package dev.streamfuse

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonObject

/**
 * Kotlin's answers for tests in other languages, as `tests/helpers/peer.py` gives Python's: reads one request per line and
 * writes one reply for each. `tests/end_to_end/test_arm_java.py` asks it on an emulated phone's processor.
 */
fun main() {
    for (line in generateSequence(::readLine)) {
        val reply = runCatching { answer(Json.decodeFromString(Python.Request.serializer(), line)) }
            .getOrElse { Python.Reply(error = "$it") }
        println(Json.encodeToString(Python.Reply.serializer(), reply))
    }
}

private fun top(answered: Answered) =
    answered.topLogProbs.map { place -> place.map { Python.Top(it.token, it.logProb, it.text) } }

private val open = mutableMapOf<String, Model>()

private fun answer(request: Python.Request): Python.Reply {
    val model = open.getOrPut(request.bundle) { StreamFuse.loadBlocking(java.io.File(request.bundle)) }
    val session = if (request.raw) model.completion() else model.chat(request.system)
    return session.use {
        Python.Reply(
            request.turns.map { prompt ->
                val answered = it.answer(prompt, request.config)
                val statistics: JsonObject = Json.parseToJsonElement(answered.statistics.json).jsonObject
                Python.Turn(answered.text, answered.tokens, answered.sources, statistics, 0.0, answered.logProbs, top(answered))
            },
        )
    }
}
