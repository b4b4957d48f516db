"""A process that, in each round, drives or opens at the moment when all others do: `python racer.py < plan.json`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import tallymark
from tallymark import records

LIMIT_S = 200.0


def main() -> None:
    plan = json.load(sys.stdin)
    with open(plan["out"], "w") as out:
        for number in range(plan["rounds"]):
            go = Path(plan["go"]) / str(number)
            deadline = time.monotonic() + LIMIT_S
            while not go.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"round {number} did not begin")
                time.sleep(0.0005)
            out.write(json.dumps(play(plan, f"{plan['url']}/{number}")) + "\n")


def play(plan: dict[str, Any], url: str) -> dict[str, Any]:
    """One round: what this racer did, and the manifest that it believes in afterwards."""
    options = {"storage_options": plan["storage_options"]}
    opened = None
    manifest = None
    if plan["role"] == "driver":
        driver = tallymark.Driver(url, **options)
        while manifest is None:
            commits = [entry for entry in driver.poll().entries if isinstance(entry, records.Commit)]
            manifest = commits[0] if commits else None
    else:
        try:
            launch = f"racer-{plan['number']}"
            worker = tallymark.join(url, rank=0, world_size=1, launch_id=launch, host_driver=False, **options)
            opened = worker.base.step if worker.base else -1
        except tallymark.Superseded:
            pass
        commits = [entry for entry in tallymark.open(url, **options).entries() if isinstance(entry, records.Commit)]
        manifest = commits[0]
    return {"opened": opened, "manifest": records.sha256(records.canonical(manifest))}


if __name__ == "__main__":
    main()
