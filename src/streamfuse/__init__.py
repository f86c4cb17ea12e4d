"""streamfuse: one language model that drafts its own future (Speculative Streaming), trained, exported and run.

    import streamfuse

    with streamfuse.open("build/demo") as model:
        print(model.generate("Why is the sky blue?").text)

`open` gives a Model (docs/python.md); `pull` and `export` make what it opens (docs/export.md). Importing this imports
nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "export", "open", "pull"]

if TYPE_CHECKING:
    from streamfuse.api import Model
    from streamfuse.api import Model as open
    from streamfuse.export import export as export
    from streamfuse.model.pull import pull as pull


def __getattr__(name: str) -> Any:
    """Parts are imported when they are asked for: `import streamfuse` stays light."""
    if name in ("open", "Model"):
        from streamfuse.api import Model

        return Model
    if name == "export":
        from importlib import import_module

        return import_module("streamfuse.export")  # a package that can be called
    if name == "pull":
        from streamfuse.extras import need

        need("pull")
        from streamfuse.model.pull import pull

        return pull
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
