"""streamfuse: one language model that drafts its own future (Speculative Streaming), trained, exported and run."""

__version__ = "0.1.0"
