"""The few of coremltools' 95 passes that change our graphs, and suppression of its output.

Each pass walks every operation of every method even if it rewrites nothing, so the others are skipped. There are two
lists because there are two ways in: a package's graphs are traced in its own float type with placeholders for weights,
while a delegate's graphs have float32 weights, and ExecuTorch calls coremltools.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

PACKAGE = (
    "common::const_elimination",
    "common::cast_optimization",
    "common::noop_elimination",
    "common::merge_consecutive_reshapes",
    "common::reduce_transposes",
    "common::dead_code_elimination",
    "common::const_deduplication",
    "mil_backend::sanitize_name_strings",
    "common::dedup_op_and_var_names",
    "nn_backend::handle_unused_inputs",
)
DELEGATE = (
    "common::update_output_dtypes",
    "common::cast_optimization",
    "common::noop_elimination",
    "common::sanitize_input_output_names",
    "common::const_elimination",
    "common::fuse_linear_bias",
    "common::fuse_transpose_matmul",
    "common::merge_consecutive_reshapes",
    "common::merge_consecutive_transposes",
    "common::dedup_op_and_var_names",
    "common::add_fp16_cast",
    "common::const_elimination",
    "common::cast_optimization",
    "common::remove_redundant_ops",
    "common::const_deduplication",
    "common::noop_elimination",
    "common::dead_code_elimination",
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses coremltools' warnings and progress bars, and the texts of whole programs that it makes for its log."""
    from coremltools.converters.mil.mil import Program

    before, text = logging.root.manager.disable, Program.__str__
    logging.disable(logging.WARNING)
    Program.__str__ = object.__repr__
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        Program.__str__ = text
