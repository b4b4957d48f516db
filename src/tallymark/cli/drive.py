"""`tallymark drive`: a driver as a process of its own, which tells what it sees decided.

Rules a change must keep:
- Signal handlers only set a flag: the driver, on its own thread, may hold any lock when a signal comes.
- SIGINT and SIGTERM let the poll under way come to its end, and then it is exit code 0.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

import tallymark
from tallymark.cli import exits, output
from tallymark.records import Abort, AnyEntry, Attempt, Commit, Finish

LOOK_EVERY_S = 0.1


def run(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """The command."""
    logging.basicConfig(stream=sys.stderr, format="tallymark: %(message)s", level=logging.WARNING)
    driver = tallymark.Driver(arguments.url, storage_options=options)
    teller = Teller(as_json=arguments.json)
    stop = threading.Event()
    signals: list[int] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            teller.begin(driver.follow())
            driver.run(stop, until_finished=not arguments.forever, on_poll=lambda poll: teller.tell(poll.entries))
        except BaseException as problem:  # noqa: BLE001  raised in the main thread
            failures.append(problem)

    def hear(signum: int, frame: object) -> None:
        signals.append(signum)
        signal.signal(signum, signal.SIG_DFL if signum == signal.SIGTERM else signal.default_int_handler)

    before = {signum: signal.signal(signum, hear) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        thread = threading.Thread(target=work, daemon=True, name="tallymark-drive")
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_EVERY_S)
            if signals and not stop.is_set():
                teller.say(f"{signal.Signals(signals[0]).name}: ending after this poll")
                stop.set()
                driver.nudge()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if failures:
        raise failures[0]
    teller.say("the run is finished" if not signals else "ended")
    return exits.OK


class Teller:
    """Says what was decided: a line on stderr for people, a line of JSON on stdout for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def begin(self, before: Sequence[AnyEntry]) -> None:
        """What stood in the journal when the driver came."""
        commits = sum(isinstance(entry, Commit) for entry in before)
        aborts = sum(isinstance(entry, Abort) for entry in before)
        if before:
            self.say(f"attempt {before[-1].attempt}; {commits} steps committed and {aborts} aborted so far")
        else:
            self.say("no run there yet: waiting for its first rank 0")

    def tell(self, entries: Sequence[AnyEntry]) -> None:
        """What was decided since, by whichever driver."""
        for entry in entries:
            if self._as_json:
                output.emit_json(document(entry), line=True)
            else:
                self.say(sentence(entry))

    def say(self, text: str) -> None:
        """A line for people."""
        if not self._as_json:
            print(f"tallymark: {output.clean(text)}", file=sys.stderr, flush=True)


def document(entry: AnyEntry) -> dict[str, Any]:
    """A journal entry for programs: its published fields, without those that only the journal's checks need."""
    fields: dict[str, Any] = msgspec.to_builtins(entry)
    return {key: value for key, value in fields.items() if key not in ("format", "prev", "nonce", "head", "run_id")}


def sentence(entry: AnyEntry) -> str:
    """A journal entry for people, in a line."""
    match entry:
        case Attempt():
            base = f"resumes from step {entry.base.step}" if entry.base else "starts afresh"
            return f"attempt {entry.attempt}: {entry.world_size} ranks, {base} (launch {entry.launch_id})"
        case Commit():
            saved = entry.checkpoint
            what, metrics = "metrics only", output.show_metrics(entry.metrics)
            if saved is not None:
                size, ranks = output.show_bytes(saved.bytes), output.show_ranks(saved.ranks)
                what = f"{saved.files} files, {size}, ranks {ranks}"
            return f"step {entry.step} committed: {what}" + (metrics and f"; {metrics}")
        case Abort():
            return f"step {entry.step} aborted: {why(entry)}"
        case Finish():
            return f"finished: {entry.status}"
        case _:
            return str(document(entry)["kind"])


def why(entry: Abort, *, limit: int = 8) -> str:
    """The reason of an abort, with the ranks and hosts behind it."""
    named = [
        f"rank {one.rank} on {one.host or 'an unknown host'}" + (f": {one.detail}" if one.detail else "")
        for one in entry.culprits[:limit]
    ]
    if len(entry.culprits) > limit:
        named.append(f"{len(entry.culprits) - limit} more")
    detail = f": {entry.detail}" if entry.detail else ""
    behind = "; ".join(named) or (f"ranks {output.show_ranks(entry.ranks)}" if entry.ranks else "")
    return entry.reason + detail + (f" [{behind}]" if behind else "")
