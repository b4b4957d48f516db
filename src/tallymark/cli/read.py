"""`tallymark ls`, `show` and `status`: what a run holds, and where it stands. They write nothing."""

from __future__ import annotations

import argparse
import json
from typing import Any

import tallymark
from tallymark.cli import exits, output
from tallymark.cli.drive import document, sentence, why
from tallymark.cli.exits import NotThere
from tallymark.records import Abort, AnyEntry, Commit, to_plain, to_ranges

NAMED = 8
"""How many missing ranks are named to a person; a program gets all."""


def open_run(arguments: argparse.Namespace, options: dict[str, Any]) -> tuple[tallymark.Run, list[AnyEntry]]:
    """The run at the URL and its journal. Raises NotThere."""
    run = tallymark.open(arguments.url, storage_options=options)
    entries = run.entries()
    if not entries:
        raise NotThere(f"there is no run at {run.url}")
    return run, entries


def find(arguments: argparse.Namespace, run: tallymark.Run, entries: list[AnyEntry]) -> tallymark.Manifest:
    """The commit that STEP names, or the newest checkpoint. Raises NotThere, saying what became of the step."""
    if arguments.step is None:
        latest = run.latest()
        if latest is None:
            raise NotThere(f"no checkpoint is committed at {run.url}; 'tallymark ls --all' shows what happened")
        return latest
    history = run.history()
    found = [manifest for manifest in history if manifest.step == arguments.step]
    if found:
        return found[-1]
    step: int = arguments.step
    fates = [entry for entry in entries if isinstance(entry, Commit | Abort) and entry.step == step]
    if fates and isinstance(fates[-1], Abort):
        raise NotThere(f"step {step} was aborted in attempt {fates[-1].attempt}: {why(fates[-1])}")
    if fates:
        raise NotThere(f"the commit of step {step} was retired, or a later attempt went back behind it")
    steps = ", ".join(str(manifest.step) for manifest in history[-NAMED:]) or "none"
    raise NotThere(f"step {step} is not committed; the newest committed steps are: {steps}")


# ------------------------------------------------------------------------------------- ls


def ls(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """The command `ls`."""
    run, entries = open_run(arguments, options)
    lineage = {manifest.slot for manifest in run.history()}
    if arguments.all:
        return _ls_all(arguments, run, entries, lineage)
    commits = [entry for entry in entries if isinstance(entry, Commit) and entry.slot in lineage]
    commits.sort(key=lambda entry: entry.step)
    if arguments.json:
        output.emit_json({"url": run.url, "steps": [_commit(entry) for entry in commits]})
        return exits.OK
    rows = []
    for entry in commits:
        saved = entry.checkpoint
        ranks = output.show_ranks(saved.ranks) if saved else "-"
        size = [saved.files, output.show_bytes(saved.bytes)] if saved else ["-", "-"]
        metrics, time = output.show_metrics(entry.metrics), output.show_time(entry.wall_time)
        rows.append([entry.step, entry.attempt, entry.slot, ranks, *size, metrics, time])
    if rows:
        output.print_table(["step", "attempt", "slot", "ranks", "files", "bytes", "metrics", "time (UTC)"], rows)
    else:
        print(f"no step is committed at {output.clean(run.url)}; 'tallymark ls --all' shows what happened")
    return exits.OK


def _ls_all(arguments: argparse.Namespace, run: tallymark.Run, entries: list[AnyEntry], lineage: set[int]) -> int:
    if arguments.json:
        documents = [document(entry) for entry in entries]
        for entry, fields in zip(entries, documents, strict=True):
            if isinstance(entry, Commit):
                fields["in_lineage"] = entry.slot in lineage
        output.emit_json({"url": run.url, "entries": documents})
        return exits.OK
    rows = []
    for entry in entries:
        behind = isinstance(entry, Commit) and entry.slot not in lineage
        text = sentence(entry) + (" (not in the lineage: retired, or gone back behind)" if behind else "")
        rows.append([entry.slot, entry.attempt or "-", text, output.show_time(entry.wall_time)])
    output.print_table(["slot", "attempt", "what", "time (UTC)"], rows)
    return exits.OK


def _commit(entry: Commit) -> dict[str, Any]:
    saved = entry.checkpoint
    return {
        "step": entry.step,
        "attempt": entry.attempt,
        "slot": entry.slot,
        "kind": saved.kind if saved else None,
        "path": saved.path if saved else None,
        "adopted": saved.adopted if saved else False,
        "ranks": saved.ranks if saved else [],
        "files": saved.files if saved else 0,
        "bytes": saved.bytes if saved else 0,
        "metrics": entry.metrics,
        "wall_time": entry.wall_time,
    }


# ------------------------------------------------------------------------------------- show


def show(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """The command `show`."""
    run, entries = open_run(arguments, options)
    manifest = find(arguments, run, entries)
    [entry] = [entry for entry in entries if entry.slot == manifest.slot and isinstance(entry, Commit)]
    fields = _manifest(run, manifest, entry)
    if arguments.json:
        output.emit_json(fields)
        return exits.OK
    reporting = output.show_ranks(to_ranges(manifest.reporting_ranks))
    rows: list[tuple[str, str]] = [
        ("run", run.url),
        ("step", f"{manifest.step} (attempt {manifest.attempt}, slot {manifest.slot})"),
        ("committed", f"{output.show_time(entry.wall_time)} UTC by {entry.written_by}"),
        ("reported by ranks", f"{reporting} of {manifest.world_size}"),
        *[(f"metric {key}", str(value)) for key, value in manifest.metrics.items()],
    ]
    checkpoint = fields["checkpoint"]
    if checkpoint is None:
        rows.append(("checkpoint", "none: metrics only"))
    else:
        adopted = " (adopted: it lies outside the run)" if checkpoint["adopted"] else ""
        rows += [
            ("checkpoint", checkpoint["url"] + adopted),
            ("kind", checkpoint["kind"]),
            ("saved by ranks", output.show_ranks(checkpoint["ranks"])),
            ("files", f"{len(checkpoint['files'])}, {output.show_bytes(checkpoint['bytes'])}"),
            *[
                (f"metadata of rank {rank}", json.dumps(words))
                for rank, words in checkpoint["metadata"].items()
                if words
            ],
        ]
    width = max(len(output.clean(name)) for name, _ in rows)
    for name, value in rows:
        print(f"{output.clean(name).ljust(width)}  {output.clean(value)}")
    if checkpoint is not None:
        _print_files(checkpoint["files"])
    return exits.OK


def _print_files(files: list[dict[str, Any]]) -> None:
    print()
    cells = [
        [file["path"], output.show_bytes(file["size"]), (file["digest"] or "-")[:12], output.show_ranks(file["ranks"])]
        for file in files
    ]
    output.print_table(["file", "size", "sha256", "ranks"], cells)


def _manifest(run: tallymark.Run, manifest: tallymark.Manifest, entry: Commit) -> dict[str, Any]:
    checkpoint = manifest.checkpoint
    saved = None
    if checkpoint is not None:
        files = checkpoint.files()
        saved = {
            "url": checkpoint.url,
            "kind": checkpoint.kind,
            "adopted": checkpoint.adopted,
            "ranks": to_ranges(checkpoint.ranks),
            "bytes": sum(file.size for file in files),
            "metadata": {str(rank): to_plain(metadata, "metadata") for rank, metadata in checkpoint.metadata.items()},
            "files": [
                {"path": file.path, "size": file.size, "digest": file.digest, "ranks": to_ranges(file.ranks)}
                for file in files
            ],
        }
    return {
        "url": run.url,
        "step": manifest.step,
        "attempt": manifest.attempt,
        "slot": manifest.slot,
        "world_size": manifest.world_size,
        "reporting_ranks": entry.reporting_ranks,
        "metrics": entry.metrics,
        "wall_time": entry.wall_time,
        "written_by": entry.written_by,
        "checkpoint": saved,
    }
