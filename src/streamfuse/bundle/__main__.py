"""Write the JSON Schema of the manifest: `python -m streamfuse.bundle docs/manifest.schema.json`."""

import sys
from pathlib import Path

from .manifest import schema_json


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m streamfuse.bundle FILE  (writes the JSON Schema of manifest.json)", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(schema_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
