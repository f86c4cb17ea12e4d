"""A system prompt whose cache a bundle stores: the text is what it is without it, and the prompt is not prefilled.

Run: python -m pytest tests/runtime/test_prefix.py
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import CAPACITY, PrintableBackend, SavingBackend, edit_manifest, list_file, write_bundle
from engine_fixtures import made_engines
from signed_samples import PUBLIC, rfc_key
from typer.testing import CliRunner

import streamfuse
from streamfuse import engines
from streamfuse.api import RemovedPrefix, StoredPrefix, remove_prefix, store_prefix
from streamfuse.bundle import BundleError, open_bundle, sign_bundle
from streamfuse.cli import app
from streamfuse.options import OptionError
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.text import TextError

SYSTEM = "Be brief."
FILE = "prefixes/system.cache"
QUESTIONS = ("Why?", "\nhow", " 7", "é")
TOOLS = [{"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}]
SETTINGS: list[dict[str, Any]] = [
    {"speculative": False}, {"width": 4}, {"width": 12}, {}, {"temperature": 0.9, "seed": 5},
    {"temperature": 0.9, "seed": 5, "speculative": False},
]  # fmt: skip


@pytest.fixture(scope="module")
def stored(chat_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model that can chat, with a stored prefix."""
    folder = tmp_path_factory.mktemp("stored") / "bundle"
    store_prefix(chat_bundle, SYSTEM, output=folder)
    return folder


def prefix_length(folder: Path, name: str = "system") -> int:
    return open_bundle(folder).manifest.prefixes[name].tokens


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_texts_are_those_without_the_prefix(stored: Path, chat_bundle: Path, setting: dict[str, Any]) -> None:
    length = prefix_length(stored)
    options = {"max_new_tokens": 12, "ignore_eos": True, **setting}
    with streamfuse.load(chat_bundle) as plain, streamfuse.load(stored) as model:
        for question in QUESTIONS:
            with plain.chat(SYSTEM) as expected, model.chat(SYSTEM) as chat:
                for turn in (question, "And then?"):
                    first, second = expected.send(turn, **options), chat.send(turn, **options)
                    assert second.tokens == first.tokens
                    found = second.statistics
                    assert found.prefix_tokens == (length if turn == question else 0)  # later it is in the cache
                    assert found.prefilled_tokens == first.statistics.prefilled_tokens - found.prefix_tokens
                    assert found.prefix_refused is None


def test_the_prefix_is_all_that_prompts_share(stored: Path) -> None:
    with streamfuse.load(stored) as model:
        ids = [model.encode(question, system=SYSTEM) for question in QUESTIONS]
        length = prefix_length(stored)
        assert len({tuple(prompt[:length]) for prompt in ids}) == 1
        assert len({prompt[length] for prompt in ids}) == len(QUESTIONS)
        for question in QUESTIONS:
            model.reset()
            found = model.generate(question, system=SYSTEM, max_new_tokens=1).statistics
            assert (found.prefix_tokens, found.prefix_refused) == (prefix_length(stored), None)


def test_every_instruction_set_of_the_kernels_stores_the_same_bytes(
    stored: Path, chat_bundle: Path, tmp_path: Path
) -> None:
    run: list[str | Path] = [sys.executable, "-m", "streamfuse", "bundle", "prefix", chat_bundle, "--system", SYSTEM]
    environment = {**os.environ, "STREAMFUSE_ISA": "portable"}
    subprocess.run([*run, "-o", tmp_path / "portable"], env=environment, check=True, capture_output=True)
    assert (tmp_path / "portable" / FILE).read_bytes() == (stored / FILE).read_bytes()


def test_a_prefix_is_loaded_again_after_a_reset_and_a_trim_and_only_if_it_saves_tokens(stored: Path) -> None:
    length = prefix_length(stored)
    with streamfuse.load(stored) as model, model.chat(SYSTEM, max_new_tokens=4, ignore_eos=True) as chat:
        first = chat.send("Why?")
        assert chat.send("How?").statistics.prefix_tokens == 0
        chat.trim()
        assert chat.send("Who?").statistics.prefix_tokens == length
        chat.reset()
        again = chat.send("Why?")
        assert (again.tokens, again.statistics.prefix_tokens) == (first.tokens, length)


def test_another_system_prompt_is_prefilled_as_always(stored: Path, chat_bundle: Path) -> None:
    with streamfuse.load(chat_bundle) as plain, streamfuse.load(stored) as model:
        for system in ("Be brief", "Be brief. ", "be brief.", None):
            with plain.chat(system, max_new_tokens=6) as expected, model.chat(system, max_new_tokens=6) as chat:
                found = chat.send("Why?")
                assert found.tokens == expected.send("Why?").tokens
                assert (found.statistics.prefix_tokens, found.statistics.prefix_refused) == (0, None)


def test_a_changed_chat_template_makes_other_prompts_which_are_prefilled(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "bundle")

    def change(manifest: dict[str, Any]) -> None:
        manifest["model"]["chat_template"] = "Chat. " + manifest["model"]["chat_template"]

    edit_manifest(folder, change)
    with streamfuse.load(folder) as model:
        found = model.generate("Why?", system=SYSTEM, max_new_tokens=4).statistics
    assert (found.prefix_tokens, found.prefix_refused) == (0, None)
    assert found.prefilled_tokens == found.prompt_tokens - 1


def test_the_longest_prefix_of_the_prompt_is_used(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "bundle")
    template = (
        "{# <tool_call> #}{% for tool in tools or [] %}{{ tool['function']['name'] + '\n' }}{% endfor %}"
        "{% for message in messages %}{{ message['role'] + ':' + message['content'] + '\n' }}{% endfor %}"
    )
    edit_manifest(folder, lambda manifest: manifest["model"].update(chat_template=template))
    prompts: dict[str, dict[str, Any]] = {
        "short": {"system": "Be"},
        "long": {"system": SYSTEM},
        "tools": {"tools": TOOLS},
    }
    for name, given in prompts.items():
        store_prefix(folder, name=name, **given)
    assert store_prefix(folder, name="role", tools=TOOLS, template_variables={"x": 1}).tokens
    lengths = {name: prefix.tokens for name, prefix in open_bundle(folder).manifest.prefixes.items()}
    assert list(lengths) == ["system", "short", "long", "tools", "role"]
    with streamfuse.load(folder) as model:
        for name, given in prompts.items():
            model.reset()
            found = model.generate("Why?", max_new_tokens=1, **given).statistics
            assert (found.prefix_tokens, found.prefix_refused) == (lengths[name], None)


def test_a_prompt_that_is_the_prefix_itself_keeps_its_last_token(stored: Path) -> None:
    with streamfuse.load(stored) as model:
        ids = model.encode("Why?", system=SYSTEM)[: prefix_length(stored)]
        found = model.generate(ids, max_new_tokens=3)
        assert (found.statistics.prefix_tokens, found.statistics.prefilled_tokens) == (len(ids) - 1, 0)
        again = model.generate(ids, max_new_tokens=3, speculative=False)
        assert (again.tokens, again.statistics.prefix_tokens) == (found.tokens, 0)


def test_the_bundle_is_the_same_one_to_its_sessions_and_costs(stored: Path, chat_bundle: Path, tmp_path: Path) -> None:
    assert open_bundle(stored).identity == open_bundle(chat_bundle).identity
    assert streamfuse.estimate(stored) == streamfuse.estimate(chat_bundle)
    with streamfuse.load(chat_bundle) as plain, plain.chat(SYSTEM, max_new_tokens=4) as chat:
        chat.send("Why?")
        chat.save(tmp_path / "chat")
    with streamfuse.load(stored) as model, model.chat(SYSTEM, max_new_tokens=4) as chat:
        chat.restore(tmp_path / "chat")
        assert chat.send("How?").statistics.prefix_tokens == 0


def flip(file: Path, place: int) -> None:
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[place] ^= 0x40
    file.write_bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.999])
def test_a_truncated_prefix_is_refused_when_the_bundle_is_opened(stored: Path, tmp_path: Path, share: float) -> None:
    folder = shutil.copytree(stored, tmp_path / "bundle")
    os.truncate(folder / FILE, int(share * (folder / FILE).stat().st_size))
    with pytest.raises(BundleError, match=rf"{FILE}: files.bytes: \d+ expected"):
        streamfuse.load(folder)


def test_a_damaged_or_missing_prefix_is_refused_when_the_bundle_is_opened(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "bundle")
    flip(folder / FILE, 500)
    with pytest.raises(BundleError, match=rf"{FILE}: files.sha256"):
        streamfuse.load(folder)
    (folder / FILE).unlink()
    with pytest.raises(BundleError, match=f"{FILE}: files: listed"):
        streamfuse.load(folder)
    edit_manifest(folder, lambda manifest: manifest["files"].pop(FILE))
    with pytest.raises(BundleError, match=f"files: has no {FILE}"):
        streamfuse.load(folder)


def test_damage_that_hashes_do_not_show_is_found_when_the_cache_is_loaded(stored: Path, tmp_path: Path) -> None:
    size = (stored / FILE).stat().st_size
    for place in (3, 12, 100, 500, size // 2, size - 20, size - 3):
        folder = shutil.copytree(stored, tmp_path / str(place))
        flip(folder / FILE, place)
        bundle = open_bundle(folder, verify=False)
        with streamfuse.load(bundle) as model, streamfuse.load(stored) as whole:
            found = model.generate("Why?", system=SYSTEM, max_new_tokens=6)
            assert found.tokens == whole.generate("Why?", system=SYSTEM, max_new_tokens=6).tokens
            assert found.statistics.prefix_tokens == 0
            assert found.statistics.prefix_refused is not None
            assert FILE in found.statistics.prefix_refused


HEADER = ("version", "capacity", "identity", "tokens", "cached", "cache", "note")  # docs/core.md, Saved sessions


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("version", 3, "was written in form 3, this version reads 2"),
        ("capacity", 64, "was saved with another bundle"),
        ("identity", 1 << 40, "is damaged"),
        ("tokens", 1 << 60, "is damaged"),
        ("cached", 0, "holds no cache"),
        ("cache", 1 << 60, "is cut off or damaged"),
        ("note", 1 << 60, "is cut off or damaged"),
    ],
)
def test_a_prefix_of_something_else_is_refused_with_the_reason(
    stored: Path, tmp_path: Path, name: str, value: int, reason: str
) -> None:
    folder = shutil.copytree(stored, tmp_path / "bundle")
    with (folder / FILE).open("r+b") as file:
        file.seek(8 + 8 * HEADER.index(name))
        file.write(value.to_bytes(8, "little"))
    with streamfuse.load(open_bundle(folder, verify=False)) as model:
        found = model.generate("Why?", system=SYSTEM, max_new_tokens=6).statistics
    assert (found.prefix_tokens, found.prefix_refused) == (0, f"{folder / FILE} {reason}")


def test_a_prefix_that_changes_while_the_bundle_is_open_is_not_used(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "bundle")
    with streamfuse.load(folder) as model:
        model.prepare()
        (folder / FILE).rename(tmp_path / "kept")
        found = model.generate("Why?", system=SYSTEM, max_new_tokens=6)
        assert found.statistics.prefix_refused == f"{folder / FILE} cannot be opened"
        store_prefix(stored, "Another one.", output=tmp_path / "other")
        shutil.copyfile(tmp_path / "other" / FILE, folder / FILE)
        model.reset()
        again = model.generate("Why?", system=SYSTEM, max_new_tokens=6)
        assert again.tokens == found.tokens
        assert again.statistics.prefix_refused == f"{folder / FILE} has changed since the bundle was opened"
        (tmp_path / "kept").rename(folder / FILE)
        model.reset()
        assert model.generate("Why?", system=SYSTEM, max_new_tokens=6).statistics.prefix_tokens


made = made_engines(SavingBackend)


@pytest.mark.usefixtures("made")
def test_a_prefix_of_another_engine_is_refused_and_the_prompt_prefilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_bundle(tmp_path / "bundle")
    length = store_prefix(folder, "Be").tokens
    with streamfuse.load(folder) as model:
        expected = model.generate("hi", system="Be", max_new_tokens=4)
        assert expected.statistics.prefix_tokens == length
    monkeypatch.setattr(SavingBackend, "cache_bytes", lambda self, tokens: 9 * tokens)
    with streamfuse.load(folder) as model:
        found = model.generate("hi", system="Be", max_new_tokens=4)
    assert found.tokens == expected.tokens
    assert found.statistics.prefix_refused == f"{folder / FILE} holds the cache of another engine"


@pytest.mark.usefixtures("made")
def test_an_engine_that_cannot_save_stores_no_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_bundle(tmp_path / "bundle")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(engines, "engines_of", lambda bundle, *_: lambda: PrintableBackend(bundle.spec()))
    with pytest.raises(BundleError, match="the engine of target executorch cannot save its cache"):
        store_prefix(folder, "Be")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("made")
def test_a_prefix_is_added_in_place_or_to_a_copy_and_replaced_by_name(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    identity = open_bundle(folder).identity
    (folder / "notes.txt").write_text("mine")
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_text("left of an earlier bundle")
    first = store_prefix(folder, "Be")
    assert first == StoredPrefix(folder / FILE, first.tokens, (folder / FILE).stat().st_size, False)
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == stat.S_IMODE((folder / "tokenizer.json").stat().st_mode)
    second = store_prefix(folder, "Be so", output=tmp_path / "new")
    assert second.tokens == first.tokens + 3
    assert prefix_length(folder) == first.tokens
    assert prefix_length(tmp_path / "new") == second.tokens
    for place in (folder, tmp_path / "new"):
        assert (place / "notes.txt").read_text() == "mine"
        assert "notes.txt" not in open_bundle(place).manifest.files
    assert open_bundle(folder).identity == identity
    with pytest.raises(BundleError, match="exists already"):
        store_prefix(folder, "Be", output=tmp_path / "new")
    store_prefix(folder, "No", name="other", output=tmp_path / "new", overwrite=True)
    assert list(open_bundle(tmp_path / "new").manifest.prefixes) == ["system", "other"]
    store_prefix(folder, "Be", output=folder / "inner")
    assert set(open_bundle(folder / "inner").manifest.files) == set(open_bundle(folder).manifest.files)
    assert {path.name for path in tmp_path.iterdir()} - {"home"} == {"bundle", "new"}


@pytest.mark.usefixtures("made")
def test_a_bundle_that_changes_while_its_prefix_is_computed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = write_bundle(tmp_path / "bundle"), engines.engines_of

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(engines, "engines_of", opened)
        store_prefix(folder, "No", name="other")
        return opened(*arguments)

    monkeypatch.setattr(engines, "engines_of", meanwhile)
    with pytest.raises(BundleError, match="another process has changed this bundle meanwhile; run the command again"):
        store_prefix(folder, "Be")
    assert list(open_bundle(folder).manifest.prefixes) == ["other"]


@pytest.mark.usefixtures("made")
def test_a_removed_prefix_leaves_the_bundle_that_was_there_before(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    first, size = store_prefix(folder, "Be"), (folder / FILE).stat().st_size
    store_prefix(folder, "No", name="other")
    assert remove_prefix(folder) == RemovedPrefix(first.tokens, size, lost_signature=False)
    assert list(open_bundle(folder).manifest.prefixes) == ["other"]
    with streamfuse.load(folder) as model:
        assert model.generate("hi", system="Be", max_new_tokens=1).statistics.prefix_tokens == 0
        model.reset()
        assert model.generate("hi", system="No", max_new_tokens=1).statistics.prefix_tokens > 0
    remove_prefix(folder, "other", output=tmp_path / "new")
    assert list(open_bundle(folder).manifest.prefixes) == ["other"]
    assert {path.relative_to(tmp_path / "new") for path in (tmp_path / "new").rglob("*")} == {
        path.relative_to(folder) for path in before
    }
    remove_prefix(folder, "other")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def written(folder: Path) -> dict[Path, tuple[int, int]]:
    """Which file each path is and when it was written; reading changes neither, unlike the rest of `stat`."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.mark.usefixtures("made")
def test_a_prefix_that_is_not_there_is_named_and_nothing_changes(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    with pytest.raises(OptionError, match="the base model has no stored prefix with the name 'system'; it has none"):
        remove_prefix(folder)
    store_prefix(folder, "Be", name="short")
    store_prefix(folder, "Be so", name="long")
    before = written(folder)
    with pytest.raises(OptionError, match="the name 'system'; it has short, long"):
        remove_prefix(folder)
    with pytest.raises(OptionError, match="the bundle has no adapters"):
        remove_prefix(folder, "short", adapter="sql")
    assert written(folder) == before


@pytest.mark.usefixtures("made")
def test_removing_makes_a_signature_again_or_says_that_it_is_lost(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    store_prefix(folder, "Be", sign_key=rfc_key())
    assert not remove_prefix(folder, output=tmp_path / "signed", sign_key=rfc_key()).lost_signature
    assert not open_bundle(tmp_path / "signed", public_key=PUBLIC).manifest.prefixes
    assert remove_prefix(folder).lost_signature
    with pytest.raises(BundleError, match="not signed"):
        open_bundle(folder, public_key=PUBLIC)


@pytest.mark.usefixtures("made")
def test_a_bundle_behind_a_link_is_changed_where_it_is(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    (tmp_path / "link").symlink_to(folder)
    assert store_prefix(tmp_path / "link", "Be").file == folder / FILE
    assert prefix_length(tmp_path / "link")


@pytest.mark.usefixtures("made")
def test_a_refused_prefix_changes_nothing(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    refusals: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, OptionError, "give system, tools or both"),
        ({"system": "Be", "name": "../x"}, OptionError, "name must be 1 to 32 of a-z"),
        ({"system": "Be", "adapter": "sql"}, OptionError, "adapter sql: the bundle has no adapters"),
        ({"system": "x" * CAPACITY}, PromptError, f"this bundle's context holds {CAPACITY}"),
        ({"system": "\ud800"}, TextError, "not UTF-8"),
    ]
    for given, kind, reason in refusals:
        with pytest.raises(kind, match=reason):
            store_prefix(folder, **given)
    edit_manifest(folder, lambda manifest: manifest["model"].update(chat_template="{{ messages[-1]['content'] }}"))
    with pytest.raises(TextError, match="begin with the question"):
        store_prefix(folder, "Be")
    edit_manifest(folder, lambda manifest: manifest["model"].update(chat_template=None))
    with pytest.raises(TextError, match="no chat template"):
        store_prefix(folder, "Be")
    (folder / "manifest.json").write_bytes(before[folder / "manifest.json"])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.usefixtures("made")
def test_a_signature_is_made_again_or_lost_and_said_so(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    sign_bundle(folder, rfc_key())
    signed = store_prefix(folder, "Be", output=tmp_path / "signed", sign_key=rfc_key())
    assert not signed.lost_signature
    with streamfuse.load(tmp_path / "signed", public_key=PUBLIC) as model:
        assert model.generate("hi", system="Be", max_new_tokens=1).statistics.prefix_tokens == signed.tokens
    assert store_prefix(folder, "Be").lost_signature
    with pytest.raises(BundleError, match="not signed"):
        open_bundle(folder, public_key=PUBLIC)


@pytest.mark.parametrize(
    ("prefixes", "problem"),
    [
        ({"../x": {"tokens": 3}}, r"prefixes: the name '\.\./x' must be 1 to 32"),
        ({"_x": {"tokens": 3}}, "begin with a letter or digit"),
        ({"x": {"tokens": 0}}, r"prefixes\.x\.tokens"),
        ({"x": {"tokens": CAPACITY}}, r"prefixes\.x\.tokens: must be below cache.capacity"),
        ({"x": {"tokens": 3, "file": "y"}}, r"prefixes\.x\.file"),
        ({"x": {"tokens": 3}}, "files: has no prefixes/x.cache"),
    ],
)
def test_a_wrong_entry_of_the_manifest_is_named(tmp_path: Path, prefixes: dict[str, Any], problem: str) -> None:
    folder = write_bundle(tmp_path / "bundle")
    edit_manifest(folder, lambda manifest: manifest.update(prefixes=prefixes))
    with pytest.raises(BundleError, match=problem):
        open_bundle(folder)


def command(*arguments: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


@pytest.mark.usefixtures("made")
def test_the_command_stores_and_inspect_and_run_show_it(tmp_path: Path) -> None:
    folder, words = write_bundle(tmp_path / "bundle"), tmp_path / "system.txt"
    sign_bundle(folder, rfc_key())
    words.write_text("Be\n", encoding="utf-8")
    code, stdout, stderr = command("bundle", "prefix", folder, "--system", f"@{words}")
    assert (code, stdout.strip()) == (0, str(folder / FILE))
    assert f"streamfuse bundle sign {folder} --key FILE" in stderr
    length = prefix_length(folder)
    assert f"stored a prefix of {length} tokens" in stderr
    _, shown, _ = command("bundle", "inspect", folder)
    assert ["system", "none", str(length)] in [row.split()[:3] for row in shown.splitlines()]
    _, stdout, stderr = command("run", folder, "hi", "--system", f"@{words}", "--stats")
    assert f"{length} from a stored prefix" in stderr
    with (folder / FILE).open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"????")
    list_file(folder, FILE, (folder / FILE).read_bytes())
    code, again, stderr = command("run", folder, "hi", "--system", f"@{words}")
    assert (code, again) == (0, stdout)
    assert f"A stored prefix is not used: {folder / FILE} is damaged." in stderr


@pytest.mark.usefixtures("made")
def test_the_command_lists_and_removes(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    code, stdout, _ = command("bundle", "prefix", folder, "--list")
    assert (code, stdout.strip()) == (0, f"{folder} has no stored prefixes")
    length = store_prefix(folder, "Be", name="brief", sign_key=rfc_key()).tokens
    code, stdout, _ = command("bundle", "prefix", folder, "--list")
    assert code == 0
    assert ["brief", "none", str(length)] in [row.split()[:3] for row in stdout.splitlines()]
    code, stdout, stderr = command("bundle", "prefix", folder, "--remove", "brief")
    assert (code, stdout.strip()) == (0, str(folder))
    assert f"removed a prefix of {length} tokens" in stderr
    assert f"streamfuse bundle sign {folder} --key FILE" in stderr
    assert not open_bundle(folder).manifest.prefixes


@pytest.mark.usefixtures("made")
def test_the_command_names_a_wrong_flag(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "bundle")
    for arguments, words in [
        ((), "give --system, --tools or both"),
        (("--system", "@nowhere.txt"), "--system nowhere.txt: No such file"),
        (("--system", "Be", "--name", "A"), "--name must be 1 to 32"),
        (("--system", "Be", "--adapter", "sql"), "--adapter sql: the bundle has no adapters"),
        (("--system", "Be", "--name", ""), "--name must be 1 to 32"),
        (("--remove", "system"), "the base model has no stored prefix with the name 'system'; it has none"),
        (("--remove", "system", "--system", "Be"), "--system does not go with --remove"),
        (("--list", "--remove", "system"), "--remove does not go with --list"),
        (("--list", "--overwrite"), "--overwrite does not go with --list"),
        (("--list", "--sign-key", "key.pem"), "--sign-key does not go with --list"),
    ]:
        code, _, stderr = command("bundle", "prefix", folder, *arguments)
        assert code == 2
        assert words in stderr
