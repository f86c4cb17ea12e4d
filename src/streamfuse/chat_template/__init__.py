"""Chat templates: Jinja as Hugging Face transformers runs it, in a sandbox and with bounded work.

Templates are untrusted code of model authors: they can format messages and nothing else. What they may use, and how
much work they may do, is the same as in text/src/jinja.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamfuse.chat_template.budget import BUDGET, MOST_BYTES, Budget
from streamfuse.chat_template.sandbox import Sandbox

__all__ = ["Message", "Template", "TextError", "one_line"]

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}


class TextError(ValueError):
    """A tokenizer or template that cannot be used, or a request that it cannot serve; one line."""


class Template:
    """A chat template, compiled.

    Raises:
        TextError: it is not valid Jinja.
    """

    def __init__(self, source: str) -> None:
        if len(source.encode(errors="surrogatepass")) > MOST_BYTES:
            raise TextError(f"the chat template is not valid Jinja (it is longer than {MOST_BYTES} bytes)")
        try:
            self._template = Sandbox().from_string(source)
        except RecursionError:
            raise TextError("the chat template is not valid Jinja (it is nested too deep)") from None
        except Exception as error:  # also Python's own, of nesting that is too deep
            raise TextError(f"the chat template is not valid Jinja ({one_line(error)})") from None

    def render(self, messages: Sequence[Message], marks: Mapping[str, str]) -> str:
        """The text of a chat up to where the next answer begins. TextError where the template refuses the messages."""
        before = BUDGET.set(Budget())
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **marks
            )
        except RecursionError:
            reason = "it calls itself, or is nested, too deep"
        except Exception as error:  # a template can raise any: it works with texts, lists and numbers
            reason = one_line(error)
        finally:
            BUDGET.reset(before)
        raise TextError(f"the chat template refuses these messages ({reason})")


def one_line(error: BaseException) -> str:
    """What an error says, short enough for a sentence of ours."""
    return " ".join(str(error).split())[:200] or type(error).__name__
