"""How a row of a data set becomes a prompt and a completion: the same words in training, measuring and the demos.

A task's model is asked as a chat with one turn, without the default system message of the base: it was tuned to do one
thing, and twenty tokens that say nothing would be read before each prompt. The chat template travels in the adapter
file, so that a bundle reads prompts as they were trained.
"""

from __future__ import annotations

from dataclasses import dataclass

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Template:
    """Format strings over a row's fields: the user's message, and the answer (None: rows without answers).

    `references` is the field of held-out rows that holds a list of right answers instead of one.
    """

    prompt: str
    completion: str | None = None
    references: str | None = None
    chat_template: str | None = CHATML  # None: the base's own


TEMPLATES = {
    "e2e": Template("{prompt}", "{completion}", "references"),
    "sql": Template("{context}\n{question}", "{answer}"),
    "dialogsum": Template("{dialogue}", "{summary}", "references"),
    "chat": Template("{prompt}", chat_template=None),
}
