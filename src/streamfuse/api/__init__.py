"""The public API for Python: `import streamfuse; model = streamfuse.load("build/demo")`.

A model finds everything of its bundle by itself: engine, tokenizer, chat template, drafting tables, and what passes
cost on this device. The command line and the benches use it too.
"""

from streamfuse.api.asynchronous import AsyncGeneration
from streamfuse.api.chat import Chat
from streamfuse.api.model import Model, load
from streamfuse.api.options import GenerationOptions, config_of
from streamfuse.api.prefix import RemovedPrefix, StoredPrefix, remove_prefix, store_prefix
from streamfuse.bundle import MemoryEstimate, estimate
from streamfuse.runtime.self_test import Parity, SelfTest
from streamfuse.runtime.session import Generation, ParsedError, Piece, Result, ToolCall
from streamfuse.runtime.statistics import Statistics

__all__ = [
    "AsyncGeneration",
    "Chat",
    "Generation",
    "GenerationOptions",
    "MemoryEstimate",
    "Model",
    "Parity",
    "ParsedError",
    "Piece",
    "RemovedPrefix",
    "Result",
    "SelfTest",
    "Statistics",
    "StoredPrefix",
    "ToolCall",
    "config_of",
    "estimate",
    "load",
    "remove_prefix",
    "store_prefix",
]
