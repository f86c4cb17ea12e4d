"""Templates that make a prompt and a completion from a data row, shared by training, benchmarks and the demos.

A task's model gets a chat with one turn, without the base's default system message: it is tuned for one task, and
twenty meaningless tokens would be processed before each prompt. The chat template is stored in the adapter file, so
that a bundle encodes prompts as in training.
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

    `references` is the field of held-out rows that has a list of correct answers.
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
