"""The moving picture of `streamfuse chat --show-drafts`: an SVG without scripts, made of a run that took place.

    python docs/images/make_chat.py build/demo                  # run, and write docs/images/chat.svg
    python docs/images/make_chat.py build/demo --trace run.json # keep what was recorded too
    python docs/images/make_chat.py run.json                    # draw a recorded run again

The prompt is answered plainly and with speculation, with weights read from memory, as on a phone
(streamfuse.bench.shared.cold_caches). Every token appears when it came, in real time; the prompt's typing alone is made
up. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

PROMPT = "Write a Python class Stack with the methods push, pop, peek, is_empty and size."
STOP = "Example usage"  # shows the class alone
MAX_NEW_TOKENS = 256
COLUMNS, CELL, LINE, MARGIN = 84, 9.0, 21, 24  # of text; widths in pixels
WIDTH = int(COLUMNS * CELL + 2 * MARGIN)
TITLE = 38
KEY_SECONDS, PAUSE_SECONDS, HOLD_SECONDS = 0.02, 0.6, 5.0
NAMES = {"streams": "streams", "lookup": "look-up", "table": "table", "model": "plain"}

STYLE = """
svg { --back: #ffffff; --bar: #f6f8fa; --edge: #d0d7de; --text: #1f2328; --quiet: #59636e; --track: #eaeef2;
      --streams: #1a7f37; --lookup: #0880ae; --table: #a626a4; --model: #6e7781; }
@media (prefers-color-scheme: dark) {
svg { --back: #0d1117; --bar: #161b22; --edge: #30363d; --text: #e6edf3; --quiet: #9198a1; --track: #21262d;
      --streams: #3fb950; --lookup: #56d4dd; --table: #d2a8ff; --model: #8b949e; } }
@media (prefers-reduced-motion: reduce) { g { clip-path: none; } .cursor, .step { display: none; } }
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; fill: var(--text);
       white-space: pre; }
.quiet { fill: var(--quiet); } .small { font-size: 13px; } .strong { font-weight: 600; }
.streams { fill: var(--streams); } .lookup { fill: var(--lookup); } .table { fill: var(--table); }
.model { fill: var(--model); } .pill { opacity: 0.14; } .edge { fill: none; stroke: var(--edge); }
.cursor { fill: var(--text); opacity: 0.75; }
"""


@dataclass(frozen=True, slots=True)
class Trace:
    """A run. `pieces`: text, source, milliseconds after the question; `plain_ms`: the same tokens', plainly.

    Tokens per pass and tokens per second (`speed`) are what the statistics of the runs say.

    Raises:
        ValueError: the times are not those of the statistics, within 10 %.
    """

    command: str
    machine: str
    commit: str
    prompt: str
    pieces: list[tuple[str, str, float]]
    plain_ms: list[float]
    tokens_per_pass: float
    speed: float
    plain_speed: float

    def __post_init__(self) -> None:
        for ms, speed in (([at for *_, at in self.pieces], self.speed), (self.plain_ms, self.plain_speed)):
            shown = 1000 * (len(ms) - 1) / (ms[-1] - ms[0])
            if not 0.9 < shown / speed < 1.1:
                raise ValueError(f"the tokens come at {shown:.0f} per second, and the statistics say {speed:.0f}")

    @classmethod
    def read(cls, path: Path) -> Trace:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**facts, "pieces": [(text, source, ms) for text, source, ms in facts["pieces"]]})


def record(bundle: Path, prompt: str, stop: str | None, max_new_tokens: int) -> Trace:
    """Answer plainly and speculatively, each once to warm up and once more. Exits if the texts differ."""
    import streamfuse
    from streamfuse import engines
    from streamfuse.bench.shared.cold_caches import ColdCaches
    from streamfuse.bench.suite import commit

    clock = ColdCaches()
    # Wrapped in a function, because a session would keep a state of its own for a ColdCaches, and the time of the
    # session's evictions would count in the picture.
    with streamfuse.load(bundle) as model, model.session(clock=lambda: clock()) as session:
        session.prepare()

        def answer(speculative: bool) -> tuple[list[tuple[str, str, float]], streamfuse.api.Statistics]:
            options = model.config(speculative=speculative, max_new_tokens=max_new_tokens, stop=stop)
            for _ in range(2):
                session.reset()
                started = clock()
                pieces = session.generate(model.encode(prompt), options)
                kept = [(one.text, one.source, 1000 * (clock() - started)) for one in pieces]
            return kept, pieces.result.statistics

        plain, plain_facts = answer(False)
        drafted, facts = answer(True)
        if [text for text, *_ in plain] != [text for text, *_ in drafted]:
            raise SystemExit("the plain and the speculative text differ")
        machine = f"{engines.cores()} cores of {engines.processor()}"
    return Trace(
        f"streamfuse chat {bundle} --show-drafts", machine, commit() or "unknown", prompt, drafted,
        [ms for *_, ms in plain],
        facts.mean_accepted_tokens, facts.decode_token_per_sec, plain_facts.decode_token_per_sec,
    )  # fmt: skip


def wrapped(pieces: Sequence[tuple[str, str, float]], columns: int) -> list[list[tuple[str, int]]]:
    """Lines of (character, number of its piece), broken between words as a terminal's pager would."""
    lines: list[list[tuple[str, int]]] = [[]]
    for number, (text, *_) in enumerate(pieces):
        for character in text:
            if character == "\n":
                lines.append([])
                continue
            lines[-1].append((character, number))
            if len(lines[-1]) > columns:
                line = lines[-1]
                space = max((at for at, (one, _) in enumerate(line) if one == " "), default=columns - 1)
                lines[-1:] = [line[: space + 1], line[space + 1 :]]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def runs(line: Sequence[tuple[str, int]]) -> list[tuple[int, str, int]]:
    """Column, text and piece of each token in a line."""
    found: list[tuple[int, str, int]] = []
    for column, (character, number) in enumerate(line):
        if found and found[-1][2] == number:
            found[-1] = (found[-1][0], found[-1][1] + character, number)
        else:
            found.append((column, character, number))
    return found


class Film:
    """Drawn things with times, on one clock that begins again and again."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.parts, self.clips = seconds, list[str](), list[str]()

    def text(self, x: float, y: float, words: str, kind: str = "", cell: float = CELL) -> str:
        """Text of a fixed width, whatever font there is."""
        length = f' textLength="{len(words) * cell:g}" lengthAdjust="spacingAndGlyphs"' if words else ""
        return f'<text x="{x:g}" y="{y:g}" class="{kind}"{length}>{escape(words)}</text>'

    def growing(self, x: float, y: float, height: float, steps: Sequence[tuple[float, float]], content: str) -> None:
        """`content` seen through a window whose width is set at times: (second, pixels)."""
        name = f"w{len(self.clips)}"
        self.clips.append(
            f'<clipPath id="{name}"><rect x="{x:g}" y="{y:g}" height="{height:g}" width="{steps[-1][1]:g}">'
            f"{self.animate('width', [(0.0, 0.0), *steps])}</rect></clipPath>"
        )
        self.parts.append(f'<g clip-path="url(#{name})">{content}</g>')

    def shown(self, start: float, end: float | None, content: str) -> None:
        """`content` between two times; without an end it stays, and stands there also where nothing moves."""
        steps = [(0.0, "hidden"), (start, "visible"), *([] if end is None else [(end, "hidden")])]
        kind, seen = ("", "visible") if end is None else (' class="step"', "hidden")
        self.parts.append(f'<g{kind} visibility="{seen}">{self.animate("visibility", steps)}{content}</g>')

    def animate(self, attribute: str, steps: Sequence[tuple[float, object]]) -> str:
        """A discrete SMIL animation; of several steps at one time, the last counts."""
        moments: dict[str, object] = {}
        for second, value in steps:
            moments[f"{min(second / self.seconds, 1.0):.4f}".rstrip("0").rstrip(".")] = value
        values = ";".join(f"{value:g}" if isinstance(value, float) else str(value) for value in moments.values())
        return (
            f'<animate attributeName="{attribute}" calcMode="discrete" dur="{self.seconds:g}s" '
            f'repeatCount="indefinite" keyTimes="{";".join(moments)}" values="{values}"/>'
        )


def draw(trace: Trace) -> str:
    """The picture as SVG. The same trace gives the same bytes."""
    begin = PAUSE_SECONDS + KEY_SECONDS * len(trace.prompt) + PAUSE_SECONDS
    moments = [begin + ms / 1000 for *_, ms in trace.pieces]
    plain = [begin + ms / 1000 for ms in trace.plain_ms]
    film = Film(round(max(moments[-1], plain[-1]) + HOLD_SECONDS, 2))
    y = TITLE + 30.0
    typed = [(PAUSE_SECONDS + KEY_SECONDS * n, (2 + n) * CELL) for n in range(1, len(trace.prompt) + 1)]
    film.parts.append(film.text(MARGIN, y, ">", "quiet"))
    film.growing(MARGIN, y - 17, LINE, typed, film.text(MARGIN + 2 * CELL, y, trace.prompt, "strong"))
    cursor: list[tuple[float, float, float]] = [(0.0, MARGIN + 2 * CELL, y)]
    cursor += [(second, MARGIN + width, y) for second, width in typed]
    y += LINE + 8
    for line in wrapped(trace.pieces, COLUMNS):
        cursor += _answer_line(film, trace, line, y, moments)
        y += LINE
    cursor.sort(key=lambda step: step[0])
    film.parts.append(
        f'<rect class="cursor" width="{CELL:g}" height="18" x="{cursor[-1][1]:g}" y="{cursor[-1][2] - 14:g}">'
        + film.animate("x", [(second, x) for second, x, _ in cursor])
        + film.animate("y", [(second, at - 14) for second, _, at in cursor])
        + "</rect>"
    )
    y += 10
    _status(film, trace, y, moments)
    y = _lanes(film, trace, y + 34, moments, plain)
    return _page(film, trace, y + 22)


def _answer_line(
    film: Film, trace: Trace, line: Sequence[tuple[str, int]], y: float, moments: Sequence[float]
) -> list[tuple[float, float, float]]:
    """One line of the answer; where the cursor stands after each of its tokens."""
    content, steps = "", list[tuple[float, float]]()
    for column, words, number in runs(line):
        source, x = trace.pieces[number][1], MARGIN + column * CELL
        if source != "model" and (seen := words.strip()):
            left = x + (len(words) - len(words.lstrip())) * CELL
            content += (
                f'<rect class="pill {source}" x="{left - 0.5:g}" y="{y - 15:g}" rx="3" height="20" '
                f'width="{len(seen) * CELL + 1:g}"/>'
            )
        content += film.text(x, y, words, source if source != "model" else "")
        steps.append((moments[number], (column + len(words)) * CELL))
    if steps:
        film.growing(MARGIN, y - 17, LINE, steps, content)
    return [(second, MARGIN + width, y) for second, width in steps]


def _status(film: Film, trace: Trace, y: float, moments: Sequence[float]) -> None:
    """The line that does not scroll away: the legend with counts, tokens per pass, speed."""
    film.parts.append(f'<rect x="1" y="{y - 1:g}" width="{WIDTH - 2}" height="30" style="fill:var(--bar)"/>')
    every = max(1, len(moments) // 24)
    last = len(moments) - 1
    marks = [*range(0, last, every), last]
    film.shown(0.0, moments[0], _status_words(film, y, Counter(), 0.0, 0.0))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        counts = Counter(source for _, source, _ in trace.pieces[: mark + 1])
        seconds = (trace.pieces[mark][2] - trace.pieces[0][2]) / 1000
        per_pass, speed = (mark + 1) / max(counts["model"], 1), mark / seconds if seconds else 0.0
        if following is None:
            per_pass, speed = trace.tokens_per_pass, trace.speed
        end = None if following is None else moments[following]
        film.shown(moments[mark], end, _status_words(film, y, counts, per_pass, speed))


def _status_words(film: Film, y: float, counts: Counter[str], per_pass: float, speed: float) -> str:
    cell, x, found = 7.8, float(MARGIN), ""
    for source, name in NAMES.items():
        words = f"{name} {counts[source]}"
        found += f'<rect class="{source}" x="{x:g}" y="{y + 9:g}" width="10" height="10" rx="2"/>'
        found += film.text(x + 16, y + 19, words, "small", cell)
        x += 16 + len(f"{name} 000") * cell + 14
    words = f"{per_pass:.2f} tokens per pass   {speed:.0f} tokens/s" if speed else ""
    return found + film.text(WIDTH - MARGIN - len(words) * cell, y + 19, words, "small", cell)


def _lanes(film: Film, trace: Trace, y: float, moments: Sequence[float], plain: Sequence[float]) -> float:
    """Two bars, a token a step: what the reader has of the answer, with speculation and without."""
    cell, left, width = 7.8, MARGIN + 96.0, WIDTH - 2 * MARGIN - 96 - 110.0
    for name, times, speed, kind in (
        ("speculative", moments, trace.speed, "streams"),
        ("plain", plain, trace.plain_speed, "model"),
    ):
        y += 22
        film.parts.append(film.text(MARGIN, y, name, "small quiet", cell))
        place = f'x="{left:g}" y="{y - 9:g}" width="{width:g}" height="8" rx="4"'
        film.parts.append(f'<rect {place} style="fill:var(--track)"/>')
        steps = [(second, width * (number + 1) / len(times)) for number, second in enumerate(times)]
        film.growing(left, y - 9, 8, steps, f'<rect {place} class="{kind}"/>')
        words = f"{speed:.0f} tokens/s"
        film.shown(times[-1], None, film.text(WIDTH - MARGIN - len(words) * cell, y, words, "small", cell))
    y += 26
    gain = f"the same text, {trace.speed / trace.plain_speed:.2f} times as fast"
    film.shown(plain[-1], None, film.text(MARGIN, y, gain, "small strong", cell))
    caption = f"{trace.machine}, cold caches, real time, commit {trace.commit}"
    y += 22
    film.parts.append(film.text(MARGIN, y, caption, "small quiet", 7.2))
    return y


def _page(film: Film, trace: Trace, height: float) -> str:
    answer = "".join(text for text, *_ in trace.pieces)
    lights = "".join(
        f'<circle cx="{24 + 18 * n}" cy="19" r="5.5" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    middle = WIDTH / 2 - len(trace.command) * 7.8 / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" xml:space="preserve">'
        f"<title>{escape(trace.command)}</title><desc>{escape(f'{trace.prompt} {answer}')}</desc>"
        f"<style>{STYLE}</style><defs>{''.join(film.clips)}"
        f'<clipPath id="frame"><rect width="{WIDTH}" height="{height:g}" rx="10"/></clipPath></defs>'
        f'<g clip-path="url(#frame)"><rect width="{WIDTH}" height="{height:g}" style="fill:var(--back)"/>'
        f'<rect width="{WIDTH}" height="{TITLE}" style="fill:var(--bar)"/>{lights}'
        f"{film.text(middle, 24, trace.command, 'small quiet', 7.8)}\n" + "\n".join(film.parts) + "\n</g>"
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="9.5" class="edge"/>'
        "</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a bundle to run, or a recorded trace (.json)")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("chat.svg"))
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--stop", default=STOP, help="text before which the answer ends")
    parser.add_argument("--max-new-tokens", type=int, default=MAX_NEW_TOKENS)
    parser.add_argument("--trace", type=Path, help="keep the recorded run here")
    flags = parser.parse_args()
    recorded = flags.source.suffix == ".json"
    trace = (
        Trace.read(flags.source) if recorded else record(flags.source, flags.prompt, flags.stop, flags.max_new_tokens)
    )
    if flags.trace:
        flags.trace.write_text(json.dumps(asdict(trace), ensure_ascii=False) + "\n", encoding="utf-8")
    flags.output.write_text(draw(trace), encoding="utf-8")
    print(flags.output)


if __name__ == "__main__":
    main()
