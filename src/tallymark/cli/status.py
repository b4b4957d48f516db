"""`tallymark status`: which attempt rules, what it stands on, and who is missing. It writes nothing."""

from __future__ import annotations

import argparse
from typing import Any

import tallymark
from tallymark.cli import exits, output
from tallymark.cli.read import NAMED, open_run
from tallymark.records import Base, Point, to_ranges


def run(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """The command."""
    opened, _ = open_run(arguments, options)
    status = opened.status()
    if arguments.json:
        output.emit_json(document(status))
    else:
        _tell(status)
    return exits.OK


def document(status: tallymark.Status) -> dict[str, Any]:
    """A status for programs."""
    head = status.head
    return {
        "url": status.url,
        "attempt": head.attempt if head else 0,
        "world_size": status.world_size,
        "base": _point(head.base) if head else None,
        "latest": _point(head.checkpoint) if head else None,
        "latest_report": _point(head.report) if head else None,
        "finished": head.finished if head else None,
        "attempts": head.attempts if head else 0,
        "commits": head.commits if head else 0,
        "aborts": head.aborts if head else 0,
        "retired": head.retired if head else 0,
        "open_steps": [
            {
                "step": step.step,
                "reported": to_ranges(step.reported),
                "missing": [{"rank": rank, "host": host} for rank, host in step.missing.items()],
            }
            for step in status.open_steps
        ],
        "left": to_ranges(status.left),
    }


def _point(point: Base | Point | None) -> dict[str, int] | None:
    return {"step": point.step, "slot": point.slot} if point is not None else None


def _tell(status: tallymark.Status) -> None:
    head = status.head
    print(f"run       {output.clean(status.url)}")
    if head is None or not head.attempt:
        print("attempt   none yet")
        return
    state = f"finished ({output.clean(head.finished)})" if head.finished is not None else "open"
    print(f"attempt   {head.attempt}, {status.world_size} ranks, {state}")
    print(f"base      {f'step {head.base.step}' if head.base else 'none: it started afresh'}")
    print(f"latest    {f'step {head.checkpoint.step}' if head.checkpoint else 'no checkpoint yet'}")
    if head.report is not None and (head.checkpoint is None or head.report.slot != head.checkpoint.slot):
        print(f"reported  step {head.report.step}, metrics only")
    print(f"so far    {head.commits} steps committed, {head.aborts} aborted, {head.attempts} attempts")
    if status.left:
        print(f"left      ranks {output.show_ranks(to_ranges(status.left))}")
    for step in status.open_steps:
        reported = output.show_ranks(to_ranges(step.reported))
        print(f"\nstep {step.step} is open; reported: ranks {reported}; missing: {len(step.missing)}")
        for rank, host in list(step.missing.items())[:NAMED]:
            print(f"  rank {rank} on {output.clean(host)}" if host else f"  rank {rank}, which never took its seat")
        if len(step.missing) > NAMED:
            print(f"  and {output.show_ranks(to_ranges(list(step.missing)[NAMED:]))}")
    if not status.open_steps and head.finished is None:
        print("\nno step is open")
