"""Where the memory of the runtime's process goes: `python tools/memory_profile.py BUNDLE [NEW_TOKENS]` (Linux).

The process is a session without command line and tokenizer, as an app has it: engine, caches, drafting data, plan.
"""

from __future__ import annotations

import sys
from pathlib import Path


def resident_mb() -> tuple[float, float, float]:
    """Resident now, of it mapped from files (weights, libraries), and at most so far."""
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, mapped, most = (int(facts[name].split()[0]) / 1000 for name in ("VmRSS", "RssFile", "VmHWM"))
    return now, mapped, most


def main(bundle: Path, new_tokens: int) -> None:
    weights = (bundle / "model.pte").stat().st_size / 1e6

    def report(stage: str) -> None:
        now, mapped, most = resident_mb()
        share = f"{most / weights:.2f} of model.pte"
        print(f"{stage:36} {now:6.1f} MB now, {mapped:6.1f} of it files, {most:6.1f} MB at most, {share}")

    report("Python")
    from streamfuse.bundle import open_bundle
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.session import Session

    report("numpy and the runtime's modules")
    backend = ExecuTorchBackend(bundle)
    report("engine opened")
    with Session(backend, open_bundle(bundle, verify=False).tables) as session:
        report("drafting data")
        session.prepare()
        report("every method has run")
        prompt = list(range(100, 164))
        session.generate(prompt, GenerationConfig(new_tokens, ignore_eos=True)).finish()
        report(f"{len(prompt)} tokens read, {new_tokens} written")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 128)
