"""The public API for Python: `import streamfuse; model = streamfuse.load("build/demo")`.

A model finds everything of its bundle by itself: engine, tokenizer, chat template, drafting tables, and what passes
cost on this device. The command line and the benches use it too.
"""

from streamfuse.api.asynchronous import AsyncGeneration
from streamfuse.api.chat import Chat
from streamfuse.api.model import Model, load
from streamfuse.api.options import GenerationOptions, config_of
from streamfuse.api.prefix import RemovedPrefix, StoredPrefix, remove_prefix, store_prefix
from streamfuse.bundle import BundleError, KeyProblem, MemoryEstimate, estimate
from streamfuse.extras import MissingExtra
from streamfuse.options import OptionError
from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.core import CoreError, Score, Stopped, TokenLogProb
from streamfuse.runtime.self_test import Parity, SelfTest
from streamfuse.runtime.session import Generation, ParsedError, Piece, Result, ToolCall
from streamfuse.runtime.statistics import Statistics
from streamfuse.runtime.text import TextError

__all__ = [
    "AsyncGeneration",
    "BackendError",
    "BundleError",
    "Chat",
    "CoreError",
    "Generation",
    "GenerationOptions",
    "KeyProblem",
    "MemoryEstimate",
    "MissingExtra",
    "Model",
    "OptionError",
    "Parity",
    "ParsedError",
    "Piece",
    "PromptError",
    "RemovedPrefix",
    "Result",
    "Score",
    "SelfTest",
    "Statistics",
    "Stopped",
    "StoredPrefix",
    "TextError",
    "TokenLogProb",
    "ToolCall",
    "config_of",
    "estimate",
    "load",
    "remove_prefix",
    "store_prefix",
]
