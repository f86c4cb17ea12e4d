"""Loading an opened bundle for a command that times what it does: costs measured, memory settled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamfuse.api import Model

if TYPE_CHECKING:
    from streamfuse.runtime.session import Session


@contextmanager
def loaded(model: Model, *, plan: bool = True, text: bool = True) -> Iterator[Session]:
    """A session of the model, closed with it at the end of the block.

    With `plan`, what passes cost is measured or read now, so that the first answer need not wait for it. Without
    `text` the session speaks token ids alone.
    """
    with model:
        session = model.session(text=text)
        if plan:
            session.prepare()
        gc.collect()
        gc.freeze()  # what is loaded stays; looking through it again would stop the text for tens of milliseconds
        yield session
