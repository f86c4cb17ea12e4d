"""The trained adapters that ship, each with its card (`NAME.md`): found by name, or by path for one of the user's."""

from __future__ import annotations

from pathlib import Path

from streamfuse.model.fields import PEFT

DEFAULT = "chat-small"  # kernels, deferred: a short pass of its own computes the streams
DEFAULT_ELSEWHERE = "chat-lossless"  # other backends and fused streams: trained with and without the next token


def shipped() -> list[str]:
    """Names of the adapters in this folder."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.safetensors"))


def find(name_or_path: str) -> Path:
    """The file of a shipped adapter, or the path itself.

    Raises:
        FileNotFoundError: neither; the message names what ships, or says what the folder of this name is.
    """
    path = Path(name_or_path)
    own = Path(__file__).parent / f"{name_or_path}.safetensors"
    if own.is_file():
        return own
    if path.is_file():
        return path
    if (path / "adapter_config.json").is_file():
        raise FileNotFoundError(f"{path} {PEFT}")
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder; name the adapter's file in it")
    raise FileNotFoundError(
        f"{name_or_path}: no such file, and not an adapter that ships ({', '.join(shipped()) or 'none'})"
    )
