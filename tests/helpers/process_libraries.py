"""What the server of processes.py loads once."""

import contextlib

import torch

torch.set_num_threads(1)  # a fork must not find a pool of threads that it does not have

with contextlib.suppress(ImportError):
    import streamfuse.cli.export

    import streamfuse.export.executorch.kernels
    import streamfuse.export.pipeline
    import streamfuse.model.gguf
    import streamfuse.train.main  # noqa: F401
