"""`tallymark verify`: prove the files of committed steps. It writes nothing."""

from __future__ import annotations

import argparse
from typing import Any

import tallymark
from tallymark.cli import exits, output
from tallymark.cli.read import find, open_run


def verify(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """The command."""
    run, entries = open_run(arguments, options)
    manifests = run.history() if arguments.all else [find(arguments, run, entries)]
    checked = []
    with output.progress(len(manifests), unit_bytes=False) as bar:
        for manifest in manifests:
            checked.append(_verify(manifest, arguments.level, bar))
            bar.advance(1)
    bad = sum(len(one["damaged"]) for one in checked)
    if arguments.json:
        output.emit_json({"url": run.url, "level": arguments.level, "ok": not bad, "steps": checked})
    else:
        _tell(run.url, checked, arguments.level, bad)
    return exits.DAMAGED if bad else exits.OK


def _verify(manifest: tallymark.Manifest, level: str, bar: output.Bar) -> dict[str, Any]:
    """One commit: how many files it has, and which of them are bad."""
    checkpoint = manifest.checkpoint
    found: dict[str, Any] = {"step": manifest.step, "attempt": manifest.attempt, "slot": manifest.slot}
    if checkpoint is None:
        return found | {"files": 0, "bytes": 0, "damaged": [], "message": "metrics only"}
    files = checkpoint.files()
    size = sum(file.size for file in files)
    bar.say(f"step {manifest.step}: {len(files)} files, {output.show_bytes(size)}")
    found |= {"files": len(files), "bytes": size, "damaged": [], "message": ""}
    try:
        checkpoint.verify(level)
    except tallymark.CheckpointDamaged as problem:
        found |= {"damaged": list(problem.paths), "message": str(problem)}
    return found


def _tell(url: str, checked: list[dict[str, Any]], level: str, bad: int) -> None:
    files, size = sum(one["files"] for one in checked), sum(one["bytes"] for one in checked)
    for one in checked:
        if one["damaged"]:
            print(f"step {one['step']}: DAMAGED: {output.clean(one['message'])}")
            for path in one["damaged"]:
                print(f"  {output.clean(path)}")
    if not files:
        print(f"{output.clean(url)}: metrics only: there is no file to verify")
        return
    verdict = f"{bad} of them DAMAGED" if bad else f"all as committed, by {level}"
    steps = f"step {checked[0]['step']}" if len(checked) == 1 else f"{len(checked)} steps"
    print(f"{output.clean(url)}: {steps}, {files} files, {output.show_bytes(size)}: {verdict}")
