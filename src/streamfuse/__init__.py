"""streamfuse: one language model that drafts its own future (Speculative Streaming), trained, exported and run.

    import streamfuse

    with streamfuse.load("build/demo") as model:
        print(model.generate("Why is the sky blue?").text)

`load` opens a bundle and returns a Model (docs/python.md); `pull` downloads a checkpoint and `export_bundle` makes a
bundle of it (docs/export.md). Importing this imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "estimate", "export_bundle", "load", "pull"]

if TYPE_CHECKING:
    from streamfuse.api import Model as Model
    from streamfuse.api import estimate as estimate
    from streamfuse.api import load as load
    from streamfuse.export import export_bundle as export_bundle
    from streamfuse.model.pull import pull as pull


def __getattr__(name: str) -> Any:
    """Parts are imported when they are asked for: `import streamfuse` stays light."""
    if name in ("Model", "estimate", "load"):
        from streamfuse import api

        return getattr(api, name)
    if name == "export_bundle":
        from streamfuse.export import export_bundle

        return export_bundle
    if name == "pull":
        from streamfuse.extras import need

        need("pull")
        from streamfuse.model.pull import pull

        return pull
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
