"""Write the vectors, or with `--check` say whether they are as they should be.

The cases and their outcomes are thought out by hand in `cases/`; only digests, names and heads are filled in here, by
plain code that knows nothing of the library.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cases import barrier, history, names, records

VECTORS = Path(__file__).parent / "vectors"
FORMAT = "tallymark.vectors/1"


def render(vectors: dict[str, Any]) -> str:
    """One case a line, so that a change shows as a change of its case."""
    parts = []
    for section, cases in vectors.items():
        lines = ",\n".join("  " + json.dumps(case, ensure_ascii=True, sort_keys=True) for case in cases)
        parts.append(f" {json.dumps(section)}: [\n{lines}\n ]")
    return f'{{\n "format": "{FORMAT}",\n' + ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Write or check; 1 if something differs."""
    files = {
        "records": records.SECTIONS,
        "names": names.SECTIONS,
        "barrier": {"cases": barrier.CASES},
        "history": {"cases": history.CASES},
    }
    stale = []
    for name, sections in files.items():
        path, text = VECTORS / f"{name}.json", render(sections)
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, "utf-8")
    print(f"{'differ' if '--check' in sys.argv else 'written'}: {', '.join(stale) or 'none'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
