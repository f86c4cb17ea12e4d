"""Other programs in the comparison of methods: which are here, and what each is made of.

All run the target's weights on the processor with as many threads. Where they speculate they draft what the other
methods draft: four tokens of the same draft model, or as many looked-up tokens as fill the widest pass. Every
other setting is the program's own default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from streamfuse.adapters import find
from streamfuse.bench.external import onnx_genai
from streamfuse.bench.external.checkpoints import write_merged
from streamfuse.bench.external.child import Child
from streamfuse.bench.external.gguf_weights import gguf_of, write_merged_gguf
from streamfuse.bench.shared.systems import LLAMA_CPP, ExternalSystemDied, ExternalSystemError, System
from streamfuse.bundle import Bundle
from streamfuse.extras import MissingExtra, need
from streamfuse.model.config import CheckpointError
from streamfuse.research.external import hugging_face, llama_server
from streamfuse.research.files import adapter

from .bundles import DRAFT_LAYERS
from .methods import DRAFT, WIDTH

HUGGING_FACE, GENAI = "Hugging Face", "ONNX Runtime GenAI"
NO_PEERS = "none"
_DRAFTED, _LOOKED_UP, _MATCH = 4, WIDTH - 1, 3  # tokens; the last for llama.cpp, whose default of 12 rarely comes again

Progress = Callable[[str], None]


class Workshop:
    """Files and programs that peers share, made when the first asks; what is opened is closed with `stack`.

    Args:
        folder: files that are made once, for this target alone; each takes its name when it is complete.
        threads: of each peer.
    """

    def __init__(self, target: Bundle, folder: Path, threads: int, stack: ExitStack, progress: Progress) -> None:
        self.threads, self.stack = threads, stack
        self.capacity = target.manifest.cache.capacity
        self.stop_ids = target.manifest.model.eos_token_ids
        self._manifest, self._folder, self._progress = target.manifest, folder, progress

    @cached_property
    def server(self) -> tuple[Path, str, str]:
        """llama.cpp's server, what it says of its flags, and its version."""
        program = llama_server.find_program()
        need("llama-cpp")
        return program, llama_server.help_of(program), llama_server.version_of(program)

    @cached_property
    def gguf(self) -> Path:
        source = gguf_of(self._pulled, self._manifest)
        file = self._adapter
        if file is None:
            return source
        return self.once("target.gguf", lambda out: write_merged_gguf(source, self._pulled, file, out))

    @cached_property
    def draft_gguf(self) -> Path:
        source = gguf_of(self._pulled, self._manifest)
        return self.once(
            "draft.gguf", lambda out: write_merged_gguf(source, self._first_layers(out), adapter(DRAFT), out)
        )

    @cached_property
    def checkpoint(self) -> Path:
        """The target's weights in Hugging Face form."""
        file = self._adapter
        if file is None:
            return self._pulled
        return self.once("target-checkpoint", lambda out: write_merged(self._pulled, file, out))

    @cached_property
    def draft_checkpoint(self) -> Path:
        """The draft model's weights in Hugging Face form."""
        draft = adapter(DRAFT)
        return self.once("draft-checkpoint", lambda out: write_merged(self._first_layers(out), draft, out))

    @cached_property
    def genai(self) -> Path:
        """The model that ONNX Runtime GenAI's builder makes."""
        need("onnx-genai")
        return self.once("onnx-genai", lambda out: onnx_genai.build(self.checkpoint, out))

    @cached_property
    def hugging_face(self) -> Child:
        """A process for all ways that share a model."""
        need("peer-hugging-face")
        return self.child(HUGGING_FACE)

    def child(self, name: str) -> Child:
        """A process for one program."""
        return self.stack.enter_context(Child(name))

    @cached_property
    def _pulled(self) -> Path:
        from streamfuse.model.pull import resolve_model

        return resolve_model(self._manifest.model.name)

    @cached_property
    def _adapter(self) -> Path | None:
        """The adapter of the bundle, where it changes the base."""
        from streamfuse.model.checkpoint import read_adapter

        name = self._manifest.speculation.adapter
        file = None if name is None else find(name)
        return file if file is not None and read_adapter(file)[0].base_rank else None

    def _first_layers(self, out: Path) -> Path:
        """A checkpoint of the draft model's layers, in the folder of what is made of it."""
        from streamfuse.research.first_layers import write_first_layers

        small = out.with_name("first-layers")
        write_first_layers(self._pulled, DRAFT_LAYERS, small)
        return small

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """The file or folder of this name; where it is not there yet, `make` writes it to the path that it gets."""
        out = self._folder / name
        if not out.exists():
            self._progress(f"making {out}, once")
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as staging:
                temporary = Path(staging) / name
                make(temporary)
                temporary.rename(out)
        return out


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to decode in another program; `plain` names that program's plain decoding."""

    name: str
    plain: str
    about: str
    open: Callable[[Workshop], System]


def _llama_cpp(name: str, flags: Callable[[Workshop, str], list[str]]) -> Callable[[Workshop], System]:
    def start(shop: Workshop) -> System:
        program, words, version = shop.server
        server = llama_server.LlamaServer(
            name, [program], shop.gguf, shop.threads, shop.capacity, shop.stop_ids, flags(shop, words), words, version
        )
        return shop.stack.enter_context(server)

    return start


def _hugging_face(name: str, kind: str, drafted: int = 0) -> Callable[[Workshop], System]:
    return lambda shop: shop.hugging_face.open(
        name, f"{hugging_face.__name__}:open_system", name=name, kind=kind, folder=str(shop.checkpoint),
        draft=str(shop.draft_checkpoint) if kind == hugging_face.ASSISTED else None, drafted=drafted,
        threads=shop.threads, stop_ids=list(shop.stop_ids),
    )  # fmt: skip


def _genai(shop: Workshop) -> System:
    folder = str(shop.genai)
    return shop.child(GENAI).open(
        GENAI, f"{onnx_genai.__name__}:open_system", name=GENAI, folder=folder, threads=shop.threads,
        capacity=shop.capacity, stop_ids=list(shop.stop_ids),
    )  # fmt: skip


_LLAMA_DRAFT, _LLAMA_LOOK_UP = f"{LLAMA_CPP}, draft model", f"{LLAMA_CPP}, look-up"
_ASSISTED, _HUGGING_FACE_LOOK_UP = f"{HUGGING_FACE}, assisted generation", f"{HUGGING_FACE}, prompt look-up"

PEERS: tuple[Peer, ...] = (
    Peer(LLAMA_CPP, LLAMA_CPP, "llama-server, the target's own GGUF", _llama_cpp(LLAMA_CPP, lambda shop, words: [])),
    Peer(
        _LLAMA_DRAFT, LLAMA_CPP, f"the same with the draft model of this comparison, {_DRAFTED} tokens",
        _llama_cpp(_LLAMA_DRAFT, lambda shop, words: llama_server.draft_flags(
            words, shop.draft_gguf, _DRAFTED, shop.threads)),
    ),
    Peer(
        _LLAMA_LOOK_UP, LLAMA_CPP, f"the same with ngram-simple: {_LOOKED_UP} tokens after {_MATCH} that came before",
        _llama_cpp(_LLAMA_LOOK_UP, lambda shop, words: llama_server.look_up_flags(words, _MATCH, _LOOKED_UP)),
    ),
    Peer(
        HUGGING_FACE, HUGGING_FACE, "transformers, float32 or bfloat16, whichever is faster here",
        _hugging_face(HUGGING_FACE, hugging_face.PLAIN),
    ),
    Peer(
        _ASSISTED, HUGGING_FACE, f"the same with the draft model of this comparison, up to {_DRAFTED} tokens",
        _hugging_face(_ASSISTED, hugging_face.ASSISTED, _DRAFTED),
    ),
    Peer(
        _HUGGING_FACE_LOOK_UP, HUGGING_FACE, f"the same with up to {_LOOKED_UP} tokens looked up in the text",
        _hugging_face(_HUGGING_FACE_LOOK_UP, hugging_face.LOOK_UP, _LOOKED_UP),
    ),
    Peer(GENAI, GENAI, "its builder's four-bit model", _genai),
)  # fmt: skip


def peers_named(names_given: str | None) -> list[Peer]:
    """The peers of `NAME;...` and the plain decoding of each; None: all; `none`: none.

    ValueError for a name that no peer has.
    """
    if names_given == NO_PEERS:
        return []
    known = {peer.name: peer for peer in PEERS}
    names = list(known) if names_given is None else [name.strip() for name in names_given.split(";")]
    for name in names:
        if name not in known:
            raise ValueError(f"--peers: {name!r} is none of {'; '.join([*known, NO_PEERS])}")
    wanted = {*names, *(known[name].plain for name in names)}
    return [peer for peer in PEERS if peer.name in wanted]


@contextmanager
def opened(
    peers: Sequence[Peer],
    target: Bundle,
    folder: Path,
    threads: int,
    required: bool,
    without: Callable[[str], None],
    progress: Progress,
) -> Iterator[dict[str, System]]:
    """The peers that run here, by name, until the end of the block.

    Args:
        folder: where files that they need are made, once, for this target alone.
        required: one that is not here is an error; one whose process dies is left out all the same.
        without: gets a sentence per reason why some are left out.

    Raises:
        ExternalSystemError, CheckpointError, MissingExtra, FileNotFoundError: why a required peer is not here.
    """
    with ExitStack() as stack:
        shop = Workshop(target, folder, threads, stack, progress)
        systems: dict[str, System] = {}
        reasons: dict[str, list[str]] = {}
        for peer in peers:
            progress(f"opening {peer.name}")
            try:
                systems[peer.name] = peer.open(shop)
            except (ExternalSystemError, CheckpointError, MissingExtra, FileNotFoundError) as error:
                if required and not isinstance(error, ExternalSystemDied):
                    raise
                reasons.setdefault(str(error), []).append(peer.name)
        for reason, names in reasons.items():
            without(f"Without {'; '.join(names)}: {reason}")
        yield systems
