"""`tallymark demo`: a small job, for real - it trains, saves, loses a rank, resumes with fewer, and is checked.

The job is `demo_rank`, what it trains is `demo_model`, its processes are `demo_launch`, and `demo_report` judges.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tallymark
from tallymark.cli import demo_report, exits, output
from tallymark.cli.demo_launch import DemoFailed, Event, Launch
from tallymark.cli.demo_model import MEMBERS
from tallymark.cli.demo_plan import (
    BARRIER_TIMEOUT_S,
    EVERY,
    KILLED_RANK,
    KILLED_STEP,
    LIMIT_S,
    RANKS,
    SAVERS,
    STEPS,
    Outcome,
)
from tallymark.records import to_ranges


def run(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """The command: make a place, play, judge, tell, clean up."""
    began = time.monotonic()
    with _ends_on_sigterm(), tempfile.TemporaryDirectory(prefix="tallymark-demo-logs-") as scratch:
        place = arguments.url or tempfile.mkdtemp(prefix="tallymark-demo-")
        keep = arguments.url is not None or arguments.keep
        try:
            outcome = _play(_Voice(arguments.json), place, options, Path(scratch), began)
            keep = keep or not outcome.ok
            outcome.kept = keep
            outcome.seconds = time.monotonic() - began
            if arguments.json:
                output.emit_json(demo_report.document(outcome))
            else:
                demo_report.tell(outcome)
        finally:
            if not keep:
                shutil.rmtree(place, ignore_errors=True)
    return exits.OK if outcome.ok else exits.OUTCOME


class _Voice:
    """Tells a person what is going on; silent where a program reads."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent

    def say(self, text: str) -> None:
        """A line on stdout, at once."""
        if not self._silent:
            print(output.clean(text), flush=True)


@contextlib.contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds like an exit, so that no process and no folder is left."""

    def end(signum: int, frame: object) -> None:
        raise SystemExit(exits.TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _play(voice: _Voice, place: str, options: dict[str, Any], scratch: Path, began: float) -> Outcome:
    run = tallymark.open(place, storage_options=options)
    if run.entries():
        raise tallymark.InvalidInput(f"there is a run at {run.url} already: the demo wants an empty place")
    voice.say(f"tallymark demo at {run.url}")
    outcome = Outcome(url=run.url)
    settings = {
        "url": place,
        "storage_options": options,
        "steps": STEPS,
        "every": EVERY,
        "barrier_timeout_s": BARRIER_TIMEOUT_S["object store" if "://" in run.url else "folder"],
    }
    try:
        with output.progress(STEPS // EVERY + 1, unit_bytes=False) as bar:
            for number, ranks in RANKS.items():
                _launch(voice, bar, outcome, number, ranks, settings, scratch, deadline=began + LIMIT_S)
    except DemoFailed as problem:
        outcome.expect("the job ran to its end", False, str(problem))
        return outcome
    demo_report.judge(outcome, tallymark.open(place, storage_options=options))
    return outcome


def _launch(
    voice: _Voice,
    bar: output.Bar,
    outcome: Outcome,
    number: int,
    ranks: int,
    settings: dict[str, Any],
    scratch: Path,
    *,
    deadline: float,
) -> None:
    """Start a launch and follow it to its end."""
    stall = (KILLED_RANK, KILLED_STEP) if number == 1 else None
    savers = {str(step): who for step, who in SAVERS[number].items()}
    with Launch(number=number, ranks=ranks, settings=settings | {"savers": savers}, stall=stall) as launch:
        launch.start(scratch, f"demo-launch-{number}")
        pids = ", ".join(str(process.pid) for process in launch.processes)
        voice.say(f"launch {number}: {ranks} ranks train {MEMBERS} small models (processes {pids})")
        seen: set[int] = set()

        def hear(rank: int, event: Event) -> None:
            what = event["event"]
            if what == "joined" and event["base"] is not None:
                old = sorted(set(event["sources"].values()))
                voice.say(
                    f"  rank {rank} resumes from step {event['base']}: models {_span(event['members'])}, "
                    f"read from the shards of old ranks {_span(old)}"
                )
            elif what == "stalled":
                launch.kill(rank)
                outcome.killed = {
                    "rank": rank,
                    "pid": launch.processes[rank].pid,
                    "step": KILLED_STEP,
                    "files_sent": event["sent"],
                }
                voice.say(
                    f"  rank {rank} has sent {len(event['sent'])} of its files of step {KILLED_STEP} and no marker: "
                    f"killed with SIGKILL (process {launch.processes[rank].pid})"
                )
                voice.say(f"  the others wait; the barrier's deadline is {settings['barrier_timeout_s']:g} s")
            elif what in ("committed", "aborted") and event["step"] not in seen:
                seen.add(event["step"])
                bar.say(f"step {event['step']} {what}")
                bar.advance(1)
                if what == "aborted":
                    voice.say(f"  all are told: {event['message']}")

        launch.run(hear, deadline=deadline)
        outcome.launches[number] = launch
        voice.say(f"  launch {number} has ended")


def _span(numbers: list[int]) -> str:
    return output.show_ranks(to_ranges(numbers))
