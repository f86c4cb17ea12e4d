"""Texts, chats and chat templates, for comparing those who read them."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

SCRIPTS = [  # first and last letters of blocks that people write in
    (0x20, 0x7E), (0xA1, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x700, 0x74F), (0x780, 0x7BF), (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xA7F), (0xA80, 0xAFF), (0xB80, 0xBFF),
    (0xC00, 0xC7F), (0xD00, 0xD7F), (0xD80, 0xDFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F),
    (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1800, 0x18AF),
    (0x3040, 0x309F), (0x30A0, 0x30FF), (0x3400, 0x3600), (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xAC00, 0xD7A3),
    (0x10330, 0x1034A), (0x12000, 0x12399), (0x1D400, 0x1D7FF), (0x20000, 0x2A6DF), (0x1F300, 0x1FAFF),
]  # fmt: skip
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️‍🔥", "1️⃣", "🧑🏿‍🚀", "😀", "☺️"]
SPECIALS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<repo_name>",
    "<|im_",
    "<|im_end|",
    "|>",
    "<s>",
    "</s>",
    "[INST]",
]
SPACES = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u00a0",
    "\u2003",
    "\u200b",
    "\ufeff",
    "\u2028",
    "\x85",
    " \n ",
    "\x1c",
    "\x0b",
]
WORDS = [
    "hello",
    "World's",
    "it'll",
    "HTTPServer",
    "x86_64",
    "3.14159",
    "1,000,000",
    "naïve",
    "don't",
    "co-op",
    "foo(bar)",
    "{{a}}",
    "{% b %}",
    '"q"',
]
STEPS = "\x00\x01\x07\x1b\x7f\x80\x9f\ud7ff\ue000\uf8ff\ufffd\ufffe\uffff\U0001ffff\U0010ffff"


def _letter(rng: random.Random) -> str:
    low, high = rng.choice(SCRIPTS)
    return chr(rng.randint(low, high))


def _any_character(rng: random.Random) -> str:
    code = rng.randrange(0x110000 - 0x800)
    return chr(code if code < 0xD800 else code + 0x800)


def _piece(rng: random.Random) -> str:
    kind = rng.randrange(10)
    if kind == 0:
        return "".join(_any_character(rng) for _ in range(rng.randint(1, 6)))
    if kind == 1:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12)))
    if kind == 2:
        return rng.choice(_letter(rng) + " a1.=-\n") * rng.choice([2, 3, 7, 16, 64, 500])
    if kind == 3:
        return _letter(rng) + "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 4)))
    if kind == 4:
        return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), "Ångström ﬁ ½ 한국어 ﷺ が")
    if kind == 5:
        return "".join(rng.choice("0123456789.,-+e ") for _ in range(rng.randint(1, 20)))
    return rng.choice([rng.choice(pool) for pool in (EMOJI, SPECIALS, SPACES, WORDS, STEPS)])


def texts(count: int, seed: int = 7) -> list[str]:
    """Strings of all kinds: scripts, emoji, control characters, runs, special tokens, random code points."""
    rng = random.Random(seed)
    fixed = ["", " ", "\0", "a\0b", *EMOJI, *SPECIALS, *SPACES, *WORDS, *STEPS, "́", " ́", "\ufdd0", "a\ufdd0b"]
    fixed += ["a" * 20_000, " " * 20_000, "\n" * 20_000, "👍" * 5_000, "ab " * 5_000, "9" * 20_000, "́" * 2_000]
    return (fixed + ["".join(_piece(rng) for _ in range(rng.randint(1, 8))) for _ in range(count)])[:count]


def chats(count: int, seed: int = 11) -> list[list[dict[str, str]]]:
    """Chats of one to nine messages, with and without a system message; some that templates refuse."""
    rng, words = random.Random(seed), texts(4 * count, seed)
    words += [
        'He said: "no". {{ not jinja }} {% raw %}',
        "line\n\n  line\n",
        "   ",
        "",
        "</think> x",
        "\\n \\ \\\\",
        "%s %d {0}",
    ]
    made = []
    for _ in range(count):
        messages = [{"role": "system", "content": rng.choice(words)}] if rng.random() < 0.4 else []
        for turn in range(rng.choice([1, 1, 1, 3, 3, 5, 2, 8])):
            role = ("user", "assistant")[turn % 2]
            messages.append(
                {"role": rng.choice(["user", "tool"]) if rng.random() < 0.03 else role, "content": rng.choice(words)}
            )
        made.append(messages)
    return made


# Chat templates of well-known families in their general form.
TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parents[1].glob("chat_templates/*.jinja"))
}
