"""Reading packages: the protobuf reader against Google's, and one clear sentence for all that cannot be read or run.

pytest tests/coreml/test_coreml_emulator_reader.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import coreml_samples as samples
import numpy as np
import pytest
import torch
from coremltools.proto import MIL_pb2, Model_pb2

from streamfuse.emulator import CoreMLEmulator, EmulatorError
from streamfuse.emulator.program import Package
from streamfuse.emulator.values import TensorType
from streamfuse.emulator.wire import Message

MODEL = Path("Data/com.apple.CoreML/model.mlmodel")
WEIGHTS = Path("Data/com.apple.CoreML/weights/weight.bin")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = samples.convert(torch.nn.Linear(64, 32), (torch.ones(2, 64),), ["x"], ["y"])
    model.user_defined_metadata["streamfuse.width"] = "2"
    model.input_description["x"] = "two rows"
    model.author = "nobody"
    return samples.save(model, tmp_path_factory.mktemp("reader"))


@pytest.fixture
def copy(package: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(package, tmp_path / "copy.mlpackage"))


def test_the_reader_sees_what_protobuf_sees(package: Path) -> None:
    spec = Model_pb2.Model.FromString((package / MODEL).read_bytes())
    block = next(iter(spec.mlProgram.functions["main"].block_specializations.values()))
    function = Package(package).function("main")
    assert [op.kind for op in function.operations] == [op.type for op in block.operations]
    assert function.outputs == list(block.outputs)
    for op, want in zip(function.operations, block.operations, strict=True):
        assert [name for name, _ in op.outputs] == [output.name for output in want.outputs]
        assert set(op.inputs) == set(want.inputs)
        for name, arguments in op.inputs.items():
            assert arguments == [binding.name for binding in want.inputs[name].arguments]


def test_every_field_type_reads_as_it_was_written() -> None:
    value = MIL_pb2.TensorValue()
    value.ints.values.extend([0, 1, -1, 2**31 - 1, -(2**31)])
    value_of = Message(value.SerializeToString())
    assert value_of.message(2).integers(1) == [0, 1, -1, 2**31 - 1, -(2**31)]
    floats = MIL_pb2.TensorValue.RepeatedFloats(values=[0.5, -3.0])
    assert Message(floats.SerializeToString()).numbers(1, "<f4").tolist() == [0.5, -3.0]
    named = MIL_pb2.NamedValueType(name="wünschelrute")
    assert Message(named.SerializeToString()).text(1) == "wünschelrute"
    assert Message(b"").integer(1) == 0
    assert Message(b"").message(3).texts(1) == []


def test_a_package_tells_its_interface(package: Path) -> None:
    emulator = CoreMLEmulator(package)
    assert emulator.functions == ("main",)
    assert emulator.inputs() == {"x": TensorType("fp32", (2, 64))}
    assert emulator.outputs() == {"y": TensorType("fp32", (2, 32))}
    assert [(item.name, item.description) for item in emulator.interface().inputs] == [("x", "two rows")]
    assert emulator.user_metadata["streamfuse.width"] == "2"
    assert emulator.operation_counts() == {"linear": 1}


def test_the_emulator_needs_neither_coremltools_nor_torch(package: Path) -> None:
    code = (
        "import sys, numpy; from streamfuse.emulator import CoreMLEmulator;"
        f"CoreMLEmulator({str(package)!r}).predict({{'x': numpy.ones((2, 64))}});"
        "print([name for name in ('coremltools', 'google.protobuf', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "needs the input 'x'"),
        ({"x": np.ones((2, 64)), "z": np.ones(1)}, "has no input 'z'"),
        ({"x": np.ones((3, 64))}, r"'x' has the shape \[3, 64\], the program expects fp32\[2, 64\]"),
    ],
)
def test_wrong_inputs_are_named(package: Path, inputs: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(EmulatorError, match=sentence):
        CoreMLEmulator(package).predict(inputs)


def test_fractions_are_no_integers(tmp_path: Path) -> None:
    model = samples.convert(torch.nn.Embedding(9, 4), (torch.zeros(2, dtype=torch.int32),), ["ids"])
    emulator = CoreMLEmulator(samples.save(model, tmp_path))
    with pytest.raises(EmulatorError, match="'ids' is float64, the program expects int32"):
        emulator.predict({"ids": [0.5, 1.0]})
    with pytest.raises(EmulatorError, match=r"gather .* failed: .* out of bounds"):
        emulator.predict({"ids": [0, 9]})


def test_an_unknown_function_is_named(package: Path) -> None:
    with pytest.raises(EmulatorError, match="has no function 'decode'; it has main"):
        CoreMLEmulator(package).predict({}, "decode")


def test_an_operation_that_is_not_emulated_is_named(tmp_path: Path) -> None:
    pool = samples.Call(lambda x: torch.nn.functional.avg_pool2d(x, 2))
    path = samples.save(samples.convert(pool, (torch.ones(1, 1, 4, 4),)), tmp_path)
    with pytest.raises(EmulatorError, match="does not know the operations: avg_pool"):
        CoreMLEmulator(path).predict({"x0": np.ones((1, 1, 4, 4))})


def _cut(size: int) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:size])

    return cut


def _strangers(package: Path) -> None:
    manifest = json.loads((package / "Manifest.json").read_text())
    manifest["rootModelIdentifier"] = "nobody"
    (package / "Manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda folder: shutil.rmtree(folder), "is not an .mlpackage folder"),
        (lambda folder: (folder / "Manifest.json").write_text("{"), "Manifest.json is damaged"),
        (_strangers, "Manifest.json is damaged: 'nobody'"),
        (lambda folder: (folder / MODEL).unlink(), "lacks its model file"),
        (lambda folder: _cut(-7)(folder / MODEL), "the model file is damaged"),
        (lambda folder: (folder / MODEL).write_bytes(b"\x08\x01"), "is not an ML program"),
        (lambda folder: (folder / WEIGHTS).unlink(), "weight.bin cannot be read"),
        (lambda folder: _cut(256)(folder / WEIGHTS), "(no blob at|end before) offset"),
        (lambda folder: (folder / WEIGHTS).write_bytes(bytes(4096)), "not blob storage of version 2"),
    ],
)
def test_a_damaged_package_gives_one_clear_sentence(copy: Path, harm: Callable[[Path], None], sentence: str) -> None:
    harm(copy)
    with pytest.raises(EmulatorError, match=sentence):
        CoreMLEmulator(copy).predict({"x": np.ones((2, 64))})


def test_weights_outside_the_package_are_refused(copy: Path) -> None:
    spec = (copy / MODEL).read_bytes()
    inside = b"@model_path/weights/weight.bin"
    outside = b"@model_path/../../../../ab.bin"
    assert len(inside) == len(outside)
    (copy / MODEL).write_bytes(spec.replace(inside, outside))
    with pytest.raises(EmulatorError, match="keeps weights outside the package"):
        CoreMLEmulator(copy).predict({"x": np.ones((2, 64))})


def test_any_flipped_byte_gives_a_sentence_or_an_answer(copy: Path, rng: np.random.Generator) -> None:
    whole = bytearray((copy / MODEL).read_bytes())
    sentences = []
    for _ in range(100):
        harmed = bytearray(whole)
        for place in rng.integers(0, len(whole), 2):
            harmed[place] = rng.integers(0, 256)
        (copy / MODEL).write_bytes(harmed)
        try:
            CoreMLEmulator(copy).predict({"x": np.ones((2, 64))})
        except EmulatorError as error:
            sentences.append(str(error))
    assert 20 < len(sentences) < 100, "some bytes say nothing that counts"
    assert not any("\n" in sentence for sentence in sentences)
