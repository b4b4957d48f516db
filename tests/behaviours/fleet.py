"""A fleet: the ranks of launches, as real processes; on memory, which processes do not share, as threads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.behaviours import rank as rank_script

import tallymark
from tallymark import records
from tallymark.adopted import opener
from tallymark.records import AnyEntry
from tallymark.register import Patience
from tallymark.store.open import open_store
from tallymark.store.port import Listed, RunStore

LIMIT_S = 60.0
Action = dict[str, Any]
Outcome = dict[str, Any]


class Under:
    """A run as a part of another store: one S3 client, whose making costs more than a test, serves many runs."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.url = f"{store.url}/{prefix[:-1]}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, key: str) -> Any:
        return self._store.read(self._prefix + key)

    def create(self, key: str, body: bytes) -> Any:
        return self._store.create(self._prefix + key, body)

    def put(self, key: str, body: bytes) -> None:
        self._store.put(self._prefix + key, body)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        for key, size in self._store.list(self._prefix + prefix, after and self._prefix + after):
            yield Listed(key.removeprefix(self._prefix), size)

    def delete(self, keys: Sequence[str]) -> Any:
        return self._store.delete([self._prefix + key for key in keys])

    def upload(self, source: Path, key: str) -> Any:
        return self._store.upload(source, self._prefix + key)

    def download(self, key: str, target: Path) -> Any:
        return self._store.download(self._prefix + key, target)

    def open(self, key: str) -> Any:
        return self._store.open(self._prefix + key)

    def size(self, key: str) -> Any:
        return self._store.size(self._prefix + key)

    def local_path(self, key: str) -> Any:
        return self._store.local_path(self._prefix + key)


_clients: dict[tuple[str, str], RunStore] = {}


def shared_store(url: str, storage_options: Mapping[str, Any]) -> RunStore:
    """A store by the one client that this process has for a server and bucket."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    known = (storage_options["endpoint_url"], bucket)
    if known not in _clients:
        _clients[known] = open_store(f"s3://{bucket}", storage_options=storage_options)
    return Under(_clients[known], prefix.rstrip("/") + "/")


@dataclass(frozen=True)
class Place:
    """The root of a run. `by_url`: use it as users do, by its URL and options, and not by a shared client."""

    kind: str
    url: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    by_url: bool = False

    def as_users_do(self) -> Place:
        return replace(self, by_url=True)

    def _where(self) -> dict[str, Any]:
        if self.kind == "s3" and not self.by_url:
            return {"url": None, "store": self.store()}
        return {"url": self.url, "storage_options": self.storage_options}

    def open(self) -> tallymark.Run:
        return tallymark.open(**self._where())

    def driver(self, patience: Patience | None = None) -> tallymark.Driver:
        if patience is None:
            return tallymark.Driver(**self._where())
        return tallymark.Driver.over(self.store(), opener(self.storage_options), patience)

    def store(self) -> RunStore:
        if self.kind == "s3" and not self.by_url:
            assert self.storage_options is not None
            return shared_store(self.url, self.storage_options)
        return open_store(self.url, storage_options=self.storage_options)

    def join(self, **more: Any) -> tallymark.Worker:
        """A worker in this very process; a world of one unless told otherwise."""
        return tallymark.join(**self._where(), **{"rank": 0, "world_size": 1, "launch_id": "a", **more})

    def beside(self, name: str) -> Place:
        return replace(self, url=f"{self.url}-{name}")

    def below(self, name: str) -> Place:
        return replace(self, url=f"{self.url}/{name}")

    def keys(self, prefix: str = "") -> list[str]:
        return [key for key, _ in self.store().list(prefix)]

    def entries(self, kind: type[Any] | None = None) -> list[Any]:
        """The journal's entries, or those of one kind."""
        found: list[AnyEntry] = self.open().entries()
        return [entry for entry in found if kind is None or isinstance(entry, kind)]

    def committed(self) -> list[tuple[int, int]]:
        """(attempt, step) of every commit, in the order of the journal."""
        return [(entry.attempt, entry.step) for entry in self.entries(records.Commit)]


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait for something, but not for ever."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := true()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
    return found


def shard(folder: Path, files: Mapping[str, str | bytes]) -> str:
    """A local folder with these files."""
    for name, body in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body if isinstance(body, bytes) else body.encode())
    return str(folder)


def report(step: int, **more: Any) -> Action:
    """Report, and wait for the step's fate."""
    return {"do": "report", "step": step, "wait": True, **more}


def say(step: int, **more: Any) -> Action:
    """Report, and go on."""
    return {"do": "report", "step": step, **more}


def wait(step: int, **more: Any) -> Action:
    return {"do": "wait", "step": step, **more}


def do(what: str, name: str | None = None) -> Action:
    return {"do": what} if name is None else {"do": what, "name": name}


class Launch:
    """The ranks of one launch."""

    def __init__(self, signals: Path) -> None:
        self.signals = signals
        self.outs: dict[int, Path] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.threads: dict[int, threading.Thread] = {}

    def wait_until_ended(self, ranks: Iterable[int] | None = None) -> None:
        chosen = list(self.outs) if ranks is None else list(ranks)
        deadline = time.monotonic() + LIMIT_S
        for number in chosen:
            left = max(0.1, deadline - time.monotonic())
            if number in self.threads:
                self.threads[number].join(left)
                assert not self.threads[number].is_alive(), f"rank {number} does not end"
            else:
                code = self.processes[number].wait(left)
                assert code in (0, -signal.SIGKILL), f"rank {number} ended with code {code}"

    def outcomes(self, ranks: Iterable[int] | None = None) -> dict[int, list[Outcome]]:
        """What came of each rank's actions, once it has ended: the join first, the leaving last. Without the log."""
        self.wait_until_ended(ranks)
        return {n: self.said(n) for n in (self.outs if ranks is None else ranks)}

    def reports(self, ranks: Iterable[int] | None = None) -> dict[int, list[Outcome]]:
        """The outcomes of the reports and waits alone."""
        found = self.outcomes(ranks)
        return {n: [one for one in said if one["do"] in ("report", "wait")] for n, said in found.items()}

    def said(self, number: int) -> list[Outcome]:
        return [one for one in self._lines(number) if one["do"] != "log"]

    def log(self, number: int) -> list[str]:
        """The warnings that a rank's process has logged."""
        return [one["message"] for one in self._lines(number) if one["do"] == "log"]

    def _lines(self, number: int) -> list[Outcome]:
        out = self.outs[number]
        lines = out.read_text().splitlines() if out.exists() else []
        found: list[Outcome] = [json.loads(line) for line in lines]
        return found

    def signal(self, name: str) -> None:
        (self.signals / name).touch()

    def wait_for(self, name: str) -> None:
        until((self.signals / name).exists, f"the signal {name}")

    def wait_until_stopped(self, number: int, name: str) -> None:
        """Until the rank stands still where its plan says so."""
        self.wait_for(name)
        if number in self.processes:
            stat = Path(f"/proc/{self.processes[number].pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"rank {number} to stop")

    def go_on(self, number: int, name: str) -> None:
        """Let a stopped rank go on."""
        if number in self.processes:
            self.processes[number].send_signal(signal.SIGCONT)
        else:
            self.signal(f"{name}.go")

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()


class Fleet:
    """Starts launches on one place, and ends them."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self.folder = folder
        self.launches: list[Launch] = []

    def shard(self, name: str, files: Mapping[str, str | bytes]) -> str:
        return shard(self.folder / "shards" / name, files)

    def launch(
        self,
        launch_id: str,
        actions: Sequence[Sequence[Action]] | Mapping[int, Sequence[Action]],
        *,
        world_size: int | None = None,
        hooks: Mapping[int, list[dict[str, Any]]] | None = None,
        plans: Mapping[int, dict[str, Any]] | None = None,
        environ: Mapping[int, dict[str, str]] | None = None,
        ranks_per_process: int = 1,
        drive_after_s: float | None = None,
        **join: Any,
    ) -> Launch:
        """Start the ranks that `actions` has (a list: all of them). `plans`: what is different in a rank's plan."""
        mine = self.folder / f"launch-{len(self.launches)}"
        mine.mkdir(parents=True)
        launch = Launch(mine / "signals")
        launch.signals.mkdir()
        self.launches.append(launch)
        todo = dict(actions) if isinstance(actions, Mapping) else dict(enumerate(actions))
        made: list[dict[str, Any]] = []
        for number, steps in todo.items():
            launch.outs[number] = mine / f"{number}.jsonl"
            plan: dict[str, Any] = {
                "url": self.place.url,
                "storage_options": self.place.storage_options,
                "join": {"rank": number, "world_size": world_size or len(todo), "launch_id": launch_id, **join},
                "actions": list(steps),
                "hooks": (hooks or {}).get(number, []),
                "signals": str(launch.signals),
                "out": str(launch.outs[number]),
                "meet": list(todo),
            }
            if drive_after_s is not None:
                plan["drive_after_s"] = drive_after_s
            made.append(plan | (plans or {}).get(number, {}))
        if self.place.kind == "memory":
            for number, plan in zip(todo, made, strict=True):
                thread = threading.Thread(target=rank_script.run_plan, args=({**plan, "threads": True},), daemon=True)
                launch.threads[number] = thread
                thread.start()
            return launch
        numbers = list(todo)
        for start in range(0, len(made), ranks_per_process):
            process = self._start(made[start : start + ranks_per_process], (environ or {}).get(numbers[start], {}))
            launch.processes.update(dict.fromkeys(numbers[start : start + ranks_per_process], process))
        return launch

    def _start(self, plans: list[dict[str, Any]], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TALLYMARK"))}
        process = subprocess.Popen(
            [sys.executable, "-W", "error", rank_script.__file__], stdin=subprocess.PIPE, env={**clean, **environ}
        )
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(plans).encode())
        return process

    def run(self, launch_id: str, actions: Any, **more: Any) -> dict[int, list[Outcome]]:
        """Launch, and wait for the end: what came of the reports of each rank."""
        return self.launch(launch_id, actions, **more).reports()

    def end(self) -> None:
        """End what still runs: processes by their id, threads by the signals that they wait for."""
        for launch in self.launches:
            for process in set(launch.processes.values()):
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                process.wait()
            for thread in launch.threads.values():
                thread.join(LIMIT_S)
