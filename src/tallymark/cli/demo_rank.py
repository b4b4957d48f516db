"""The demo's training script: what one rank runs, as `python -m tallymark.cli.demo_rank`.

It is a job like any other: it learns its rank from `TALLYMARK_*`, joins, resumes, trains, reports. Around that, it
reads its settings as the first line of stdin, waits for a second line (all ranks are up), and tells what happens as
lines of JSON on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import tallymark
from tallymark.cli.demo_model import Member, share, state_file
from tallymark.store.open import open_store
from tallymark.store.port import Moved, RunStore

STATE_KIND = "demo-state"
"""Weights, momentum and random numbers of all members: what training resumes from."""
WEIGHTS_KIND = "demo-weights"
"""The weights alone of some members: what one would hand to an evaluation."""
ABORTED = 6


class StallingStore:
    """The run's store, which stands still in the middle of an upload once `armed`, for the demo to kill us there.

    The first file is sent as ever. The next one is not: we say so and wait for the end.
    """

    def __init__(self, inner: RunStore) -> None:
        self.armed = False
        self._inner = inner
        self._sent: list[str] = []
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def upload(self, source: Path, key: str) -> Moved:
        """Copy a file, or wait for SIGKILL."""
        if not self.armed:
            return self._inner.upload(source, key)
        with self._lock:
            if self._sent:
                tell("stalled", sent=self._sent)
                sys.stdin.read()  # returns if the demo itself is gone
                os._exit(1)
            moved = self._inner.upload(source, key)
            self._sent.append(key)
            return moved


def tell(event: str, **more: Any) -> None:
    """One line of JSON for the demo."""
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def resume(worker: tallymark.Worker) -> tuple[list[Member], dict[str, int]]:
    """This rank's members: new, or read from the base's shards; and the old ranks that had written them."""
    mine = share(worker.rank, worker.world_size)
    if worker.base is None:
        return [Member.new(number) for number in mine], {}
    checkpoint = worker.base.checkpoint
    assert checkpoint is not None
    if checkpoint.kind != STATE_KIND:
        raise SystemExit(f"the base is of kind {checkpoint.kind!r}, which holds no state to resume from")
    writer = {file.path: rank for rank in checkpoint.ranks for file in checkpoint.files(rank=rank)}
    members, sources = [], {}
    for number in mine:
        path = state_file(number)
        with checkpoint.open(path) as stream:
            members.append(Member.load(number, stream.read()))
        sources[path] = writer[path]
    return members, sources


def report(worker: tallymark.Worker, members: list[Member], step: int, savers: list[int]) -> tallymark.Manifest:
    """Report a step, with a shard if this rank is among those that save, and wait for its fate."""
    metrics = {"loss": members[0].loss(), "member": members[0].number}
    if worker.rank not in savers:
        return worker.report(metrics, step=step).wait()
    weights_only = len(savers) < worker.world_size
    with tempfile.TemporaryDirectory(prefix="tallymark-demo-shard-") as folder:
        for member in members:
            member.save(Path(folder), weights_only=weights_only)
        shard = tallymark.Checkpoint.from_directory(
            folder,
            kind=WEIGHTS_KIND if weights_only else STATE_KIND,
            metadata={"members": [member.number for member in members]},
        )
        return worker.report(metrics, shard, step=step).wait()


def train(worker: tallymark.Worker, settings: dict[str, Any], store: StallingStore | None) -> None:
    """From the base, or from the start, to the last step."""
    members, sources = resume(worker)
    tell(
        "joined",
        attempt=worker.attempt,
        base=worker.base.step if worker.base else None,
        members=[member.number for member in members],
        sources=sources,
        loss=members[0].loss(),
    )
    for step in range(max(1, worker.first_step), settings["steps"] + 1):
        for member in members:
            member.train()
        if step % settings["every"] == 0:
            if store is not None:
                store.armed = step == settings["stall_at"]
            manifest = report(worker, members, step, settings["savers"].get(str(step), []))
            tell("committed", step=step, slot=manifest.slot)
    worker.finish("completed")


def main() -> int:
    """Run one rank; 0 if it trained to the end, ABORTED if a step was aborted."""
    settings = json.loads(sys.stdin.readline())
    url, options = settings["url"], settings["storage_options"]
    tell("ready")
    if sys.stdin.readline() != "go\n":
        return 1
    stalls = settings["stall_at"] is not None
    store = StallingStore(open_store(url, storage_options=options)) if stalls else None
    try:
        with tallymark.join(
            url,
            storage_options=None if stalls else options,
            store=store,
            barrier_timeout_s=settings["barrier_timeout_s"],
        ) as worker:
            train(worker, settings, store)
    except tallymark.StepAborted as problem:
        tell(
            "aborted",
            step=problem.step,
            reason=problem.reason,
            ranks=problem.ranks,
            hosts=problem.hosts,
            message=str(problem),
        )
        return ABORTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
