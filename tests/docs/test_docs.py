"""The pages: links lead somewhere, commands and flags exist, samples name what the sources have.

tests/end_to_end/test_docs.py runs the samples. Run: python -m pytest tests/docs/test_docs.py
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import ROOT, Sample, commands, pages, samples, without_samples

from streamfuse import api
from streamfuse.api import GenerationOptions, Statistics
from streamfuse.cli import app
from streamfuse.native import xcframework
from streamfuse.native.android import __main__ as aar

_LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
_SOURCES = ("core", "kernels", "native", "src/streamfuse", "tests", "text", "tools")
_DEMOS = ("android_demo", "ios_demo/StreamFuse/Sources", "ios_demo/App")
_FILE_FORMATS = {"bundle manifest v1", "costs 3"}  # `streamfuse ...`, the first words of files
FRAGMENTS = 10  # blocks of code that cannot run; more of them would be pages that nothing tests


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for target in (first or second for first, second in _LINK.findall(without_samples(page))):
        if re.match(r"[a-z]+:", target):  # on the web
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


def test_every_page_of_docs_is_in_its_index() -> None:
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_every_page_that_the_sources_name_is_there() -> None:
    named = {
        (str(file.relative_to(ROOT)), page)
        for folder in (*_SOURCES, *_DEMOS)
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".h", ".cpp", ".rs", ".kt", ".swift") and file.is_file()
        for page in re.findall(
            r"\b(?:docs|kernels|tests|tests/traces)/[\w-]+\.md", file.read_text(encoding="utf-8", errors="replace")
        )
    }
    assert len(named) > 50
    assert {(file, page) for file, page in named if not (ROOT / page).is_file()} == set()


def test_every_source_file_that_a_page_names_is_there() -> None:
    """Names between backticks, and those of the map of folders in CONTRIBUTING.md."""
    suffixes = (".py", ".h", ".cpp", ".rs", ".kt", ".swift")
    files = {
        file.relative_to(ROOT).as_posix()
        for folder in (*_SOURCES, "android_demo", "ios_demo")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in suffixes
    } | {"setup.py", "llama.cpp"}
    folder_map = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The folders")[2]
    named = {("CONTRIBUTING.md", name) for name in re.findall(r"[\w.]+\.(?:py|h)\b", folder_map)}
    for page in pages():
        if page.name != "LOG.md":  # says what was
            code = re.findall(r"`([\w./-]+)`", without_samples(page))
            named |= {(page.name, name) for name in code if name.endswith(suffixes)}
    assert len(named) > 100
    assert {pair for pair in named if not any(f"/{file}".endswith(f"/{pair[1]}") for file in files)} == set()


def test_the_page_of_the_python_api_lists_every_option() -> None:
    table = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").partition("| option | meaning |")[2]
    listed = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert listed == set(GenerationOptions.__annotations__)


def test_the_errors_that_the_page_of_the_python_api_lists_are_in_the_api() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    found = re.search(r"^\* Errors, in `streamfuse\.api`: (.+)$", page, re.MULTILINE)
    assert found is not None
    listed = set(re.findall(r"`([A-Z]\w+)`", found[1])) - {"ValueError"}
    assert len(listed) > 5
    assert listed == {
        name for name in api.__all__ if isinstance(kind := getattr(api, name), type) and issubclass(kind, Exception)
    }


def test_the_page_of_the_runtime_explains_every_field_of_the_statistics() -> None:
    table = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8").partition("| key | meaning |")[2]
    assert re.findall(r"^\| `(\w+)", table, re.MULTILINE) == [field.name for field in fields(Statistics)]


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


def find(words: list[str]) -> tuple[Any, Any, list[str]]:
    """The command that the words begin with, its context, and the words after it."""
    command, words = command_line(), list(words)
    context = typer.Context(command, info_name="streamfuse", **command.context_settings)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
        context = typer.Context(command, info_name=command.name, parent=context, **command.context_settings)
    return command, context, words


def parse(words: list[str]) -> str | None:
    """What the command line says against these arguments, without running anything; None: nothing."""
    command, context, arguments = find(words)
    if hasattr(command, "commands"):
        return "no such command"
    try:
        values, extra, _ = command.make_parser(context).parse_args(arguments)
        for parameter in command.params:
            value = values.get(parameter.name)
            if parameter.required and value in (None, ()):
                return f"{parameter.name} is missing"
            if value is not None and parameter.callback is None:  # callbacks read files
                parameter.process_value(context, value)
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's, or those of the copy of it that typer carries
            raise
        return str(error.format_message())
    return f"too many arguments: {extra}" if extra else None


def objection(command: list[str]) -> str | None:
    """What is wrong with a command of a sample. None: nothing, or a program that is not this project's."""
    program, *arguments = command
    if program == "streamfuse":
        return parse(arguments)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        rules = re.findall(r"^([\w\- ]+):(?!=)", makefile, re.MULTILINE)
        known = {target for rule in rules for target in rule.split()}
        return next((f"no target {word}" for word in arguments if "=" not in word and word not in known), None)
    if program == "python" and arguments[:1] == ["-m"]:
        return None if importlib.util.find_spec(arguments[1]) else f"no module {arguments[1]}"
    files = [word.partition("::")[0] for word in arguments if re.match(r"(tests|kernels|core|ios_demo)/", word)]
    return next((f"no file {file}" for file in files if not list(ROOT.glob(file))), None)


@pytest.mark.parametrize("sample", samples("sh"), ids=lambda sample: sample.name)
def test_every_command_of_a_sample_exists_with_its_flags(sample: Sample) -> None:
    found = commands(sample.text)
    assert found
    assert [(command, wrong) for command in found if (wrong := objection(command))] == []


def helps(command: Any, name: str = "streamfuse") -> list[tuple[str, str]]:
    """Name and help of a command and of every command below it."""
    below = getattr(command, "commands", {})
    return [(name, command.help or ""), *(pair for word in below for pair in helps(below[word], f"{name} {word}"))]


def test_every_example_of_a_help_is_a_command_that_exists_with_its_flags() -> None:
    wrong, count = [], 0
    for name, text in helps(command_line()):
        for example in commands(text.partition("[bold]Examples[/bold]")[2]):
            if objection(example) is not None:
                wrong.append((name, example, objection(example)))
            count += 1
    assert count > 50
    assert wrong == []


def test_every_example_of_a_converted_adapter_names_its_base() -> None:
    text = dict(helps(command_line()))["streamfuse adapter convert"]
    examples = text.partition("[bold]Examples[/bold]")[2].split("\n\n")
    assert [example for example in examples if example.strip() and "--model ~/models/base" not in example] == []


# Flags that the pages name of pytest, pip, cargo and this project's own test programs and modules.
_OTHER_FLAGS = {"--bench-products", "--build-dir", "--build-option", "--config-settings", "--full", "--help", "--slow"}
_OTHER_FLAGS |= {
    "--help-all",
    "--manifest-path",
    "--most-growth",
    "--plat-name",
    "--profile",
    "--release",
    "--shape",
    "--tokenizer",
}


def flags_of(command: Any) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(flags_of(child) for child in getattr(command, "commands", {}).values()))


def test_every_flag_in_the_prose_is_one_of_some_command() -> None:
    known = flags_of(command_line()) | _OTHER_FLAGS
    for parser in (aar.make_parser(), xcframework.make_parser()):
        known |= set(re.findall(r"--[a-z]+", parser.format_help()))
    named = {
        (page.name, flag.replace("_", "-"))
        for page in pages()
        if page.name != "LOG.md"  # says what was
        for code in re.findall(r"`([^`\n]*)`", without_samples(page))
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)
    }
    assert len(named) > 50
    assert {(page, flag) for page, flag in named if flag not in known} == set()


def test_every_command_in_the_prose_exists_with_its_flags() -> None:
    """Code between backticks is often half a command, so only its names are asked for."""
    wrong, count = [], 0
    for page in pages():
        if page.name == "LOG.md":  # says what was
            continue
        spans = re.findall(r"`([^`\n]*)`", without_samples(page))  # in pairs: between two of them is prose
        for code in (match[1] for span in spans if (match := re.search(r"(?:^| )streamfuse ([a-z].*)", span))):
            if code in _FILE_FORMATS:
                continue
            command, _, rest = find(code.split())
            flags = {flag.partition("=")[0].replace("_", "-") for flag in rest if flag.startswith("--")}
            if command is command_line() or not flags <= flags_of(command) | {"--help", "--help-all"}:
                wrong.append(f"{page.name}: streamfuse {code}")
            count += 1
    assert count > 20
    assert wrong == []


_SHIMS = {
    "kotlin": ("android_demo/streamfuse/src/main", "*.kt"),
    "swift": ("ios_demo/StreamFuse/Sources", "*.swift"),
}
_DECLARATION = re.compile(
    r"\b(?:fun|val|var|enum class|class|object|interface|func|let|struct|actor|case|init|enum|extension)\s+"
    r"(?:<[^>]*>\s+)?(\w+)"
    r"|(\w+)\s*:|^\s+([A-Z]+)[,(]",  # and the values of an enum in Kotlin
    re.MULTILINE,
)
_USE = r"\.([A-Za-z]\w*)|\b([A-Z]\w+)|\b([A-Za-z]\w*)\s*[:=](?![:=])"
_FOREIGN = {  # of the languages, and of the app around a sample
    "kotlin": {"print", "println", "collect", "last", "Serializable", "SerialName", "String", "Boolean", "Int",
               "ComponentCallbacks2", "TRIM_MEMORY_UI_HIDDEN", "level", "launch", "associateWith", "maxBy"},
    "swift": {"print", "terminator", "show", "green", "self", "Int", "String", "Codable", "Decodable",
              "NotificationCenter", "UIApplication", "Task", "default", "addObserver", "forName", "queue", "main",
              "didReceiveMemoryWarningNotification", "object", "NSObject", "UIApplicationDelegate", "Sendable", "Self",
              "Void", "FoundationModels", "StreamFuseFoundationModels", "LanguageModelSession", "streamResponse"},
}  # fmt: skip


@pytest.mark.parametrize("language", ["kotlin", "swift"])
def test_kotlin_and_swift_samples_use_names_that_the_libraries_have(language: str) -> None:
    """The compilers see these samples too, where they are: make android, make ios."""
    folder, pattern = _SHIMS[language]
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / folder).rglob(pattern))
    declared = {name for names in _DECLARATION.findall(source) for name in names}
    assert samples(language)
    page = "\n".join(sample.text for sample in samples(language))
    for names in re.findall(r"\bclass\s+(\w+)(?: \{([A-Z, ]+)\})?|\bval (\w+):", page):  # classes of other samples
        declared |= set(re.findall(r"\w+", " ".join(names)))
    for sample in samples(language):
        code = re.sub(r'"[^"]*"|//.*', "", sample.text)
        own = set(re.findall(r"\b(?:val|let|await|struct|class|func|fun)\s+(\w+)", code))
        used = {name for names in re.findall(_USE, code) for name in names if name}
        assert used, sample.name
        assert used - declared - own - _FOREIGN[language] == set(), sample.name


def test_fragments_are_few() -> None:
    marked = [sample.name for language in ("python", "sh", "c") for sample in samples(language) if sample.fragment]
    assert len(marked) <= FRAGMENTS, marked
