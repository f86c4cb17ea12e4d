"""What the server of processes.py loads once: without it each command would import these for seconds."""

from __future__ import annotations

import gc
from importlib.util import find_spec

import torch

import streamfuse.cli.commands.export

torch.set_num_threads(1)  # a fork must not find a pool of threads that it does not have

if find_spec("executorch"):
    import streamfuse.export.executorch.kernels
    import streamfuse.export.pipeline
if find_spec("gguf"):
    import streamfuse.model.gguf
if find_spec("transformers"):
    import streamfuse.train.main
    import streamfuse.train.plot  # noqa: F401

gc.collect()
gc.freeze()  # no fork's collector goes through all of this
