"""Write the JSON Schemas of all records to docs/spec/schemas, or say with `--check` which of them differ."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tallymark import records

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "spec" / "schemas"


def name_of(kind: type[Any]) -> str:
    """`InventoryFile` -> `inventory-file`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The schema of one record, complete in itself.

    msgspec knows types and bounds. What it does not: a record is refused unless it says exactly its format.
    """
    [reference], components = msgspec.json.schema_components([kind])
    assert reference == {"$ref": f"#/$defs/{kind.__name__}"}
    own = components.pop(kind.__name__)
    if "format" in own["properties"]:
        own["properties"]["format"] = {"const": own["properties"]["format"]["default"]}
        own["required"] = ["format", *own["required"]]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:tallymark:{name_of(kind)}"}
    whole: dict[str, Any] = head | own | ({"$defs": dict(sorted(components.items()))} if components else {})
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the schemas lie")
    options = parser.parse_args(arguments)
    wanted = {f"{name_of(kind)}.json": json.dumps(schema_of(kind), indent=2) + "\n" for kind in records.PUBLISHED}
    found = {path.name: path.read_text("utf-8") for path in options.folder.glob("*.json")}
    differ = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if options.check:
        for name in differ:
            print(f"{name} differs from the code; run python scripts/schemas.py")
        return 1 if differ else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in differ:
        path = options.folder / name
        path.write_text(wanted[name], "utf-8") if name in wanted else path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
