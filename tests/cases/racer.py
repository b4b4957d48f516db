"""A process that in each round drives or opens when all others do: `python -m tests.cases.racer < plan.json`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.behaviours.fleet import Place

import tallymark
from tallymark import records

LIMIT_S = 200.0


def main() -> None:
    plan = json.load(sys.stdin)
    place = Place(plan["kind"], plan["url"], plan["storage_options"])
    with open(plan["out"], "w") as out:
        for number in range(plan["rounds"]):
            go = Path(plan["go"]) / str(number)
            deadline = time.monotonic() + LIMIT_S
            while not go.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"round {number} did not begin")
                time.sleep(0.0005)
            out.write(json.dumps(play(plan, place.below(f"{number}"))) + "\n")


def play(plan: dict[str, Any], place: Place) -> dict[str, Any]:
    """One round: what this racer did, and the manifest that it believes in afterwards."""
    opened = None
    manifest = None
    if plan["role"] == "driver":
        driver = place.driver()
        while manifest is None:
            commits = [entry for entry in driver.poll().entries if isinstance(entry, records.Commit)]
            manifest = commits[0] if commits else None
    else:
        with contextlib.suppress(tallymark.Superseded):
            worker = place.join(launch_id=f"racer-{plan['number']}", host_driver=False)
            opened = worker.base.step if worker.base else -1
        manifest = place.entries(records.Commit)[0]
    return {"opened": opened, "manifest": records.sha256(records.canonical(manifest))}


if __name__ == "__main__":
    main()
