"""How many published JSON schemas compile, and whether their grammars accept the right instances.

    git clone https://github.com/guidance-ai/jsonschemabench
    python tools/schema_coverage.py build/demo jsonschemabench/maskbench/data

Each file of MaskBench has a schema and instances of which is known whether the schema accepts them. An instance is
written as compact JSON with its properties in the given order, so a grammar may refuse a valid one whose order is not
that of the schema; it must not accept an invalid one. `--list` prints the files behind each count.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import defaultdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.progress import track

from streamfuse.runtime.constraint import MAY_END
from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import GrammarError, Tokenizer


def accepts(constraint: Grammar, ids: list[int]) -> bool:
    """Whether the grammar accepts a text, token by token. The constraint is at its beginning before and after."""
    taken = 0
    try:
        for token in ids:
            if not constraint.allows([token])[0]:
                return False
            constraint.accept(token)
            taken += 1
        return bool(constraint.state() & MAY_END)
    finally:
        constraint.rollback(taken)


def kind_of(error: GrammarError) -> str:
    """Its message without what belongs to one schema."""
    reason = str(error).partition(": ")[2] or str(error)
    return re.sub(r"\d+", "N", re.sub(r"\"[^\"]*\"|/.*/|#\S*", "...", reason))[:90]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="a bundle, for its tokenizer")
    parser.add_argument("folder", type=Path, help="maskbench/data of a clone of jsonschemabench")
    parser.add_argument("--list", action="store_true", help="print the files behind each count")
    given = parser.parse_args()
    model: dict[str, Any] = json.loads((given.bundle / "manifest.json").read_text(encoding="utf-8"))["model"]
    tokenizer = Tokenizer(given.bundle / "tokenizer.json", vocab_size=model["vocab_size"])
    found: dict[str, list[str]] = defaultdict(list)
    seconds, compiled, instances = [], 0, {True: 0, False: 0}
    tokenizer.constraint(regex="a").close()  # the index of the vocabulary
    for file in track(sorted(given.folder.glob("*.json")), description="Compiling"):
        case = json.loads(file.read_text(encoding="utf-8"))
        began = time.perf_counter()
        try:
            constraint = tokenizer.constraint(schema=case["schema"])
        except GrammarError as error:
            found[f"refused: {kind_of(error)}"].append(file.name)
            continue
        seconds.append(time.perf_counter() - began)
        compiled += 1
        for test in case.get("tests", []):
            ids = tokenizer.encode_rendered(json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")))
            try:
                is_accepted = accepts(constraint, ids)
            except GrammarError as error:
                found[f"failed: {kind_of(error)}"].append(file.name)
                break
            instances[test["valid"]] += 1
            if is_accepted != test["valid"]:
                found["invalid, but accepted" if is_accepted else "valid, but refused"].append(file.name)
        constraint.close()
    refused = sum(len(files) for name, files in found.items() if name.startswith("refused"))
    print(f"{compiled} of {compiled + refused} schemas compile ({100 * compiled / (compiled + refused):.1f} %)")
    print(f"{median(seconds) * 1e3:.1f} ms each (median; 95th percentile: {quantiles(seconds, n=20)[-1] * 1e3:.1f} ms)")
    print(f"{instances[True]} valid instances, {len(found['valid, but refused'])} refused")
    print(f"{instances[False]} invalid instances, {len(found['invalid, but accepted'])} accepted")
    for name, files in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(files):6} {name}")
        if given.list:
            print(*(f"       {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
