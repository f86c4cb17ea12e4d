"""A chat template rendered in three ways: by transformers, by Python and by the library."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

from bundle_library import LibraryBundle, LibraryFailure
from bundle_samples import edit_manifest, write_bundle
from streamfuse.chat_template import Message, Template, TextError

MARKS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
CHAT: list[Message] = [
    {"role": "system", "content": "Be é 'q' \"d\" brief.\n"},
    {"role": "user", "content": " Hello <b>World</b>\n\nline two  "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFine."},
    {"role": "user", "content": "x"},
]
Rendered = tuple[bool, str]  # whether the template was rendered, and the text or what is said


def by_transformers(source: str, messages: list[Message]) -> Rendered:
    try:
        texts, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True, **MARKS)
        return True, texts[0]
    except Exception as error:
        return False, str(error)


def by_python(source: str, messages: list[Message]) -> Rendered:
    try:
        return True, Template(source).render(messages, MARKS)
    except TextError as error:
        return False, str(error)


class Library:
    """Renders through bundles that differ in their template only."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.bundle = write_bundle(self.folder / "bundle")

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def __call__(self, source: str, messages: list[Message]) -> Rendered:
        new = {"chat_template": source, "bos_token_id": 256, "eos_token_ids": [257]}
        edit_manifest(self.bundle, lambda fields: fields["model"].update(new))
        try:
            with LibraryBundle(self.bundle, check_hashes=False) as bundle:
                return True, bundle.text().render(messages)
        except LibraryFailure as failure:
            return False, str(failure)
