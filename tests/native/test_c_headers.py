"""What other languages declare by hand of the C headers agrees with them. Run: pytest tests/native/test_c_headers.py"""

from __future__ import annotations

import ctypes
import re
from typing import Any

import app_library
import bundle_library
import pytest
from c_headers import APP_HEADER, ROOT, Function, Kind, functions, layout, structures

from streamfuse.native import library
from streamfuse.runtime import core, text_library
from streamfuse.runtime import structures as mirrors
from streamfuse.runtime.reference import watch

SIGNATURES = {**library.SIGNATURES, **core.SIGNATURES, **watch.SIGNATURES, **bundle_library.SIGNATURES,
              **app_library.SIGNATURES}  # fmt: skip
STRUCTURES = {**mirrors.STRUCTURES, **watch.STRUCTURES, **app_library.STRUCTURES, **text_library.STRUCTURES}
RUST = {"Method": "sf_method", "Spec": "sf_spec", "CTensor": "sf_tensor", "Options": "sf_options",
        "CConstraint": "sf_constraint", "TextPart": "sf_text_part", "CWatch": "sf_watch",
        "BundleOptions": "sf_bundle_options", "CEstimate": "sf_estimate"}  # fmt: skip
RUST_NUMBERS = {
    "()": "void",
    "i32": "int4",
    "c_int": "int4",
    "i64": "int8",
    "u64": "int8",
    "usize": "int8",
    "f64": "float8",
}
JAVA = {"Long": "jlong", "Int": "jint", "Boolean": "jboolean", "Double": "jdouble", "ByteArray": "jbyteArray",
        "Array<ByteArray?>": "jobjectArray", "LongArray": "jlongArray", "ByteBuffer": "jobject",
        "": "void"}  # fmt: skip


def kind_of(of: Any) -> Kind:
    """Of a ctypes type."""
    if of is None:
        return Kind("void")
    value = of()
    if hasattr(value, "argtypes"):
        return Kind("pointer", function=Function(kind_of(value.restype), tuple(map(kind_of, value.argtypes or ()))))
    if hasattr(of, "contents") or value.value is None:
        return Kind("pointer")
    return Kind(f"{'float' if isinstance(value.value, float) else 'int'}{ctypes.sizeof(of)}")


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_python_calls_a_function_with_the_header_s_types(name: str) -> None:
    result, arguments = SIGNATURES[name]
    declared = functions()[name]
    assert tuple(map(kind_of, arguments)) == declared.arguments
    assert kind_of(result) == declared.result


def test_the_tests_call_every_function_that_an_app_may_call() -> None:
    assert set(app_library.SIGNATURES) == set(functions(APP_HEADER))


@pytest.mark.parametrize("name", sorted(structures()))
def test_python_lays_out_a_structure_as_the_header_does(name: str) -> None:
    mirror, fields = STRUCTURES[name], structures()[name]
    places, size = layout(fields)
    assert ctypes.sizeof(mirror) == size
    for field, kind in fields.items():
        descriptor = getattr(mirror, field)
        assert (descriptor.offset, descriptor.size) == places[field], field
        value = getattr(mirror(), field)
        assert isinstance(value, float) == kind.name.startswith("float"), field
        if kind.function is not None:
            assert kind_of(type(value)) == kind, field


def rust() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "text/src/border").glob("*.rs")))


def rust_kind(of: str) -> Kind:
    of = of.strip().removeprefix("Option<").removesuffix(">")
    if match := re.fullmatch(r'unsafe extern "C" fn\((.*?)\)(?: -> (.*))?', of):
        function = Function(rust_kind(match[2] or "()"), tuple(map(rust_kind, match[1].split(","))))
        return Kind("pointer", function=function)
    if of.startswith(("*const", "*mut")):
        return Kind("pointer")
    if array := re.fullmatch(r"\[(\w+); (\d+)\]", of):
        return Kind(RUST_NUMBERS[array[1]], int(array[2]))
    return Kind(RUST_NUMBERS[of])


@pytest.mark.parametrize("name", sorted(RUST))
def test_rust_lays_out_a_structure_as_the_header_does(name: str) -> None:
    body = re.search(rf"#\[repr\(C\)\]\n(?:#\[derive.*\]\n)?pub struct {name} \{{(.*?)\n\}}", rust(), re.DOTALL)
    assert body
    lines = [line.strip().removesuffix(",") for line in body[1].splitlines() if ":" in line]
    fields = {line.partition(":")[0].removeprefix("pub ").strip(): rust_kind(line.partition(":")[2]) for line in lines}
    expected = structures()[RUST[name]]
    assert fields == expected
    assert list(fields) == list(expected)


def test_rust_exports_every_function_of_its_header_with_the_header_s_types() -> None:
    pattern = r'pub unsafe extern "C" fn (sf_\w+)\((.*?)\)\s*(?:-> ([^{]+?))?\s*\{'
    found = {}
    for name, arguments, result in re.findall(pattern, rust(), re.DOTALL):
        kinds = tuple(rust_kind(part.partition(":")[2]) for part in arguments.split(",") if part.strip())
        found[name] = Function(rust_kind(result) if result else Kind("void"), kinds)
    declared = {name: one for name, one in functions().items() if name in bundle_library.SIGNATURES}
    assert found == declared


def test_kotlin_declares_the_functions_that_its_native_half_has() -> None:
    kotlin = ROOT / "android_demo/streamfuse/src/main/kotlin/dev/streamfuse/Native.kt"
    native = ROOT / "android_demo/streamfuse/src/main/cpp/streamfuse_jni.cpp"
    declared = {}
    for name, arguments, result in re.findall(
        r"external fun (\w+)\((.*?)\)(?:: (\w+)\??)?", kotlin.read_text(encoding="utf-8"), re.DOTALL
    ):
        types = [part.partition(":")[2].strip().removesuffix("?") for part in arguments.split(",") if part.strip()]
        declared[name] = (JAVA[result], *(JAVA[one] for one in types))
    defined = {}
    for result, name, arguments in re.findall(
        r"^NATIVE\((\w+), (\w+)(.*?)\) \{", native.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        defined[name] = (result, *(part.split()[0] for part in arguments.split(",")[1:]))
    assert declared == defined
    assert len(declared) > 15


def test_kotlin_puts_options_where_the_header_has_them() -> None:
    source = (ROOT / "android_demo/streamfuse/src/main/kotlin/dev/streamfuse/Reply.kt").read_text(encoding="utf-8")
    places, size = layout(structures()["sf_options"])
    names = {"enableSpeculativeDecoding": "speculative"}
    bytes_of = {"Int": 4, "Long": 8, "Double": 8}
    read = re.findall(r"^ +(\w+) = buffer\.get(\w+)\((\d+)\)", source, re.MULTILINE)
    written = re.findall(r"buffer\.put(\w+)\((\d+), (?:if \()?value\.(\w+)", source)
    found = {(name, kind, place) for name, kind, place in read} | {(name, kind, place) for kind, place, name in written}
    assert len(read) == len(written) - 1 == 11  # the bundle has no width of its own
    assert len(found) == 12, "what is written in one place is read in another"
    for name, kind, place in found:
        field = names.get(name, re.sub(r"([A-Z])", r"_\1", name).lower())
        assert places[field] == (int(place), bytes_of[kind]), name
    assert f"OPTIONS_BYTES = {size}" in source


def test_native_asks_for_a_sentence_after_the_call_that_failed() -> None:
    """Arguments of one call are evaluated in any order."""
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "native").glob("*.cpp")))
    calls = re.findall(r"\bcheck\(([^;]*_error\([^;]*)\);", sources)
    assert len(calls) >= 5
    assert [call for call in calls if not call.startswith("code, ")] == []
