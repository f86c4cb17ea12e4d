"""The structures of core/streamfuse_core.h by ctypes, and the types of their functions."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any


class Sized(ctypes.Structure):
    """A structure whose first field is its size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.size = ctypes.sizeof(self)


class Results(ctypes.Structure):
    """sf_results."""

    _fields_ = [
        *((name, c_int64) for name in ("survivors", "carrying", "vocab_size", "num_streams", "top_k")),
        *((name, c_void_p) for name in ("logits", "best", "kept", "stream_ids", "stream_log_probs")),
    ]


RUN = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int32, c_void_p, c_void_p, c_void_p, c_int32, POINTER(Results))
STREAMS_OF = ctypes.CFUNCTYPE(c_int, c_void_p, c_int32, c_int64, POINTER(Results))
COMMIT = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_int32), c_int32)
TRUNCATE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
TRUNCATABLE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_int64))
ERROR = ctypes.CFUNCTYPE(c_void_p, c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, c_void_p)
BYTES_OF = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_uint64))
PART = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64)
ROWS = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64, PART, c_void_p)
TAKE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
STEP = ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)
CLOCK = ctypes.CFUNCTYPE(c_double, c_void_p)


class Watch(ctypes.Structure):
    """sf_watch."""

    _fields_ = [("step", STEP), ("context", c_void_p)]


class EngineTable(Sized):
    """sf_backend: the functions of one engine, which a session takes over."""

    _fields_ = [
        ("size", c_size_t),
        ("context", c_void_p),
        ("run", RUN),
        ("streams", STREAMS_OF),
        ("commit", COMMIT),
        ("truncate", TRUNCATE),
        ("error", ERROR),
        ("release", RELEASE),
        ("bytes_of", BYTES_OF),
        ("save", ROWS),
        ("load", ROWS),
        ("idle", RELEASE),
        ("trim", RELEASE),
        ("truncatable", TRUNCATABLE),
    ]


class Method(ctypes.Structure):
    """sf_method."""

    _fields_ = [("name", c_char_p), ("rows", c_int32), ("keep", c_int32), ("carrying", c_int32)]


class Spec(Sized):
    """sf_spec."""

    _fields_ = [
        ("size", c_size_t),
        *((n, c_int64) for n in ("capacity", "vocab_size", "num_streams", "top_k", "prefill_rows")),
        ("verify", POINTER(Method)),
        *((n, c_int32) for n in ("verify_count", "deferred")),
        ("stop_ids", c_void_p),
        *((n, c_int32) for n in ("stop_count", "stream_vocab_size")),
        ("identity", c_char_p),
    ]


class SequenceOptions(Sized):
    """sf_sequence_options."""

    _fields_ = [
        ("size", c_size_t),
        ("clock", CLOCK),
        ("clock_context", c_void_p),
        *((n, c_char_p) for n in ("cost_folder", "device")),
        ("model_load_ms", c_double),
    ]


class ColdClock(ctypes.Structure):
    """sf_cold_clock."""

    _fields_ = [("evict", RELEASE), ("context", c_void_p), *((n, c_double) for n in ("pass_s", "hidden", "last"))]


class Tensor(ctypes.Structure):
    """sf_tensor."""

    _fields_ = [("name", c_char_p), ("dtype", c_int32), ("rank", c_int32), ("shape", c_int64 * 2), ("data", c_void_p)]


class Estimate(Sized):
    """sf_estimate."""

    _fields_ = [("size", c_size_t), *((n, c_int64) for n in ("weights_bytes", "tables_bytes", "cache_bytes"))]


class BundleOptions(Sized):
    """sf_bundle_options."""

    _fields_ = [
        ("size", c_size_t),
        ("public_key", c_char_p),
        ("watch", POINTER(Watch)),
        ("skip_hashes", c_int32),
    ]


class ConstraintTable(Sized):
    """sf_constraint: the functions of a grammar, which the core takes over with the start of a text."""

    _fields_ = [
        ("size", c_size_t),
        ("context", c_void_p),
        ("accept", ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)),
        ("rollback", ctypes.CFUNCTYPE(c_int, c_void_p, c_int32)),
        ("state", ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_int32))),
        ("allows", ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_int64), c_int32, POINTER(c_uint8))),
        ("mask", ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_uint32))),
        ("forced", ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_int64), c_int32, POINTER(c_int32))),
        ("choice_key", ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_uint64))),
        ("error", ctypes.CFUNCTYPE(c_void_p, c_void_p)),
        ("release", ctypes.CFUNCTYPE(None, c_void_p)),
    ]


class Options(Sized):
    """sf_options."""

    _fields_ = [
        ("size", c_size_t),
        ("max_new_tokens", c_int64),
        ("temperature", c_double),
        ("top_k", c_int64),
        *((n, c_double) for n in ("top_p", "min_p", "repetition_penalty")),
        ("seed", c_uint64),
        ("stop_ids", c_void_p),
        *((n, c_int32) for n in ("stop_count", "ignore_eos", "speculative", "width")),
        ("constraint", POINTER(ConstraintTable)),
        *((n, c_int32) for n in ("sources", "log_probs")),
        *((n, c_int64) for n in ("dropped_turns", "dropped_tokens")),
        ("top_log_probs", c_int32),
    ]


class CToken(ctypes.Structure):
    """sf_token."""

    _fields_ = [("id", c_int64), ("source", c_int32), ("log_prob", c_float)]


class TopToken(ctypes.Structure):
    """sf_top_token."""

    _fields_ = [("id", c_int64), ("log_prob", c_float), ("reserved", c_int32)]


STRUCTURES: dict[str, type[ctypes.Structure]] = {  # a test compares them with the header
    "sf_results": Results, "sf_backend": EngineTable, "sf_method": Method, "sf_spec": Spec, "sf_tensor": Tensor,
    "sf_sequence_options": SequenceOptions, "sf_constraint": ConstraintTable, "sf_options": Options,
    "sf_token": CToken, "sf_top_token": TopToken, "sf_watch": Watch, "sf_estimate": Estimate,
    "sf_bundle_options": BundleOptions, "sf_cold_clock": ColdClock,
}  # fmt: skip
