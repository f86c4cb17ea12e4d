"""JSON schemas of Python types, and the objects that the text of an answer becomes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from streamfuse.json_text import integer
from streamfuse.options import OptionError
from streamfuse.runtime.config import Schema


def schema_of(value: object, flag: str = "schema") -> Schema:
    """The schema that `value` means: a JSON schema as a dict or JSON text, or a type.

    Types are pydantic models, dataclasses, TypedDicts and what can be a field of them: str, int, float, bool, None,
    list, dict[str, T], Literal, Enum, Optional, Union. Objects of a type have no properties but its fields, unless a
    model's configuration allows them.

    Raises:
        OptionError: no JSON schema; names the field of a type, or the place in the text. `flag` is named first.
    """
    if isinstance(value, str):
        return Schema(_checked_text(value, flag))
    if isinstance(value, bool):  # True allows any value, False no value
        return Schema(json.dumps(value))
    if isinstance(value, Mapping):
        try:
            return Schema(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"--{flag} is not a JSON schema: {error}") from None
    if not isinstance(value, type) and not get_args(value):
        raise OptionError(
            f"--{flag} must be a dict, JSON text, a pydantic model, a dataclass or a TypedDict, not {value!r:.40}"
        )
    adapter, schema = adapter_of(value, flag)
    return Schema(json.dumps(schema), adapter.validate_json)


def adapter_of(type_: Any, flag: str) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """pydantic's TypeAdapter of a type, and the type's JSON schema. OptionError names the field that has none."""
    try:
        adapter = TypeAdapter[Any](type_)
        return adapter, _json_schema(adapter)
    except PydanticUserError as error:
        try:
            place, found, why = _culprit(type_, error) or ("", type_, error)
        except NameError as unknown:  # in an annotation that is text
            raise OptionError(f"--{flag}: {_name(type_)}: {unknown}; the type must be a global of its module") from None
        raise OptionError(
            f"--{flag}: there is no JSON schema of {place or _name(type_)}: {_reason(found, why)}"
        ) from None


def _json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    return adapter.json_schema(schema_generator=_Generator)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A class whose configuration leaves other properties open ignores them, so the model need not write any."""
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    schema.pop("title", None)
    return schema


class _Generator(GenerateJsonSchema):
    """Schemas without titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(super().typed_dict_schema(schema))


def _checked_text(text: str, flag: str) -> str:
    try:
        found = json.loads(text, parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"--{flag} is not JSON: {error}") from None
    if not isinstance(found, (dict, bool)):
        raise OptionError(f"--{flag} must be a JSON schema, which is an object, not {text!r:.40}")
    return text


def _culprit(
    type_: Any, error: Exception, place: str = "", above: tuple[object, ...] = ()
) -> tuple[str, Any, Exception] | None:
    """The innermost field that has no schema, as "City.mayor", with its type and pydantic's reason. None where only
    the types `above` are at fault, which this one contains again."""
    above, fails = (*above, type_), False
    for name, hint in _fields(type_):
        try:
            _json_schema(TypeAdapter[Any](hint))
        except PydanticUserError as own:
            fails = True
            inner = None if hint in above else _culprit(hint, own, f"{_name(type_)}.{name}" if name else place, above)
            if inner is not None:
                return inner
    return None if fails else (place, type_, error)


def _fields(type_: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a class; the arguments of `list[City]`, `City | None` and the like, which have no names."""
    if get_args(type_):
        yield from (("", argument) for argument in get_args(type_) if isinstance(argument, type) or get_args(argument))
    elif isinstance(type_, type) and type_.__module__ != "builtins":
        yield from get_type_hints(type_, include_extras=True).items()


def _reason(type_: object, error: Exception) -> str:
    code = getattr(error, "code", None)
    if code == "typed-dict-version":
        return f"{_name(type_)} is a typing.TypedDict; import TypedDict from typing_extensions (before Python 3.12)"
    if code in ("schema-for-unknown-type", "invalid-for-json-schema"):
        return f"{_name(type_)} is not a type of JSON values; see docs/structured.md"
    return str(error).partition("\n")[0]


def _name(type_: object) -> str:
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_)
