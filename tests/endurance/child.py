"""What runs in the processes of these tests. Each talks to its parent: `say` tells it, `hear` waits for it."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tallymark
from tallymark.store.open import open_store
from tallymark.testing.counting import CountingStore, Operation

_parent: Connection | None = None


def say(word: str, **more: Any) -> None:
    assert _parent is not None
    _parent.send({"word": word, **more})


def hear() -> Any:
    assert _parent is not None
    return _parent.recv()


def label(operation: Operation) -> str:
    """The operation and its key, without what differs from one run to the next."""
    key = operation.key
    if key.startswith("markers/"):
        key = re.sub(r"/([0-9]+-[0-9]+\.[a-z]+)\..*", r"/\1.*", key)
    elif key.startswith("members/"):
        key = re.sub(r"(/[0-9]{6})\.[0-9a-f]{16,32}", r"\1.*", key)
    elif key.startswith("ballots/"):
        key = re.sub(r"\.[0-9a-f]{32}\.([12])\..*", r".*.\1.*", key)
    elif key.startswith("tallies/"):
        key = "tallies/*"
    elif key.startswith("probe-"):
        key = "probe-*"
    return f"{operation.name} {key}"


def numbered(operations: list[Operation]) -> list[str]:
    """Labels that tell operations on the same key apart by their order."""
    seen: Counter[str] = Counter()
    found = []
    for operation in operations:
        seen[label(operation)] += 1
        found.append(f"{label(operation)} #{seen[label(operation)]}")
    return found


class Arm:
    """Counts operations by label from now on, and kills this process before or after one of them."""

    def __init__(self, store: CountingStore, kill: dict[str, str] | None) -> None:
        self._store = store
        self._mark = len(store.operations)
        self._lock = threading.Lock()
        self._seen: dict[str, Counter[str]] = {"before": Counter(), "after": Counter()}
        self._kill = kill
        store.before = lambda operation: self._count("before", operation)
        store.after = lambda operation: self._count("after", operation)

    def _count(self, when: str, operation: Operation) -> None:
        with self._lock:
            name = label(operation)
            self._seen[when][name] += 1
            if self._kill == {"when": when, "label": f"{name} #{self._seen[when][name]}"}:
                say("reached", label=self._kill["label"])
                os.kill(os.getpid(), signal.SIGKILL)

    def labels(self) -> list[str]:
        return numbered(self._store.operations[self._mark :])


def store_of(spec: dict[str, Any]) -> CountingStore:
    return CountingStore(open_store(spec["url"], storage_options=spec["storage_options"]))


def shard(files: dict[str, int]) -> Path:
    """A folder of files in `tempfile.tempdir`, which is the test's own."""
    folder = Path(tempfile.mkdtemp(prefix="tallymark-shard-"))
    for name, size in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))
    return folder


def report(spec: dict[str, Any]) -> None:
    """A rank: one step, then, when told to, the report at whose operations it may be killed."""
    store = store_of(spec)
    worker = tallymark.join(None, store=store, host_driver=False, **spec["join"])
    worker.report({"rank": worker.rank}, shard({"first.bin": 10}), step=0)
    say("reported")
    hear()
    arm = Arm(store, spec["kill"])
    worker.report({"rank": worker.rank}, shard({"a.bin": 3000, "deep/b.bin": 0}), step=1)
    say("done", labels=arm.labels())
    hear()
    os._exit(0)  # gone without a word, as if it had been killed


def drive(spec: dict[str, Any]) -> None:
    """A driver that decides, seals and sweeps what there is, and may be killed at it."""
    store = store_of(spec)
    arm = Arm(store, spec["kill"])
    driver = tallymark.Driver(None, store=store)
    while driver.poll().moved:
        pass
    say("done", labels=arm.labels())


def opens(spec: dict[str, Any]) -> None:
    """Rank 0 of a launch, which may be killed as it joins."""
    store = store_of(spec)
    arm = Arm(store, spec["kill"])
    worker = tallymark.join(None, store=store, host_driver=False, **spec["join"])
    say("done", labels=arm.labels(), attempt=worker.attempt)
    os._exit(0)


def train(spec: dict[str, Any]) -> None:
    """A rank of a long run: reports without waiting; rank 0 waits for the last step and ends the run."""
    worker = tallymark.join(spec["url"], storage_options=spec["storage_options"], host_driver=False, **spec["join"])
    steps, last = spec["steps"], None
    for step in range(worker.first_step, steps):
        saves = (step + worker.rank) % 4 == 0 and step % 5 != 4
        folder = shard({f"rank{worker.rank}.bin": 100 + step, "same.bin": 0}) if saves else None
        last = worker.report({"step": step, "rank": worker.rank}, folder, step=step)
    say("reported")
    if worker.rank == 0 and last is not None:
        last.wait(spec["wait_s"])
        worker.finish("all steps reported")
    else:
        worker.leave()
    say("done")


def driver(spec: dict[str, Any]) -> None:
    """A driver for as long as the run lasts."""
    made = tallymark.Driver(spec["url"], storage_options=spec["storage_options"])
    say("driving")
    made.run()
    say("done")


ROLES = {"report": report, "drive": drive, "opens": opens, "train": train, "driver": driver}


def main(role: str, spec: dict[str, Any], parent: Connection, stderr: str) -> None:
    """The body of every process."""
    global _parent
    _parent = parent
    with open(stderr, "wb") as log:
        os.dup2(log.fileno(), 2)
    tempfile.tempdir = str(Path(stderr).parent)
    ROLES[role](spec)
