"""One launch of the demo's job: a real process for each rank, which learns who it is from `TALLYMARK_*`.

Settings, storage options among them, go to a rank by its stdin: a command line or environment can be seen by others.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]


class DemoFailed(Exception):
    """The job could not be run to its end."""


class Launch:
    """The processes of a launch. Use it in a `with`: whatever happens, none of them is left."""

    def __init__(self, *, number: int, ranks: int, settings: dict[str, Any], stall: tuple[int, int] | None) -> None:
        self.number = number
        self.ranks = ranks
        self.events: dict[int, list[Event]] = {rank: [] for rank in range(ranks)}
        self.codes: dict[int, int] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self._settings = settings
        self._stall = stall
        self._queue: queue.Queue[tuple[int, Event | None]] = queue.Queue()
        self._readers: list[threading.Thread] = []
        self._logs: list[Path] = []

    def start(self, scratch: Path, launch_id: str) -> None:
        """Start all ranks; what they write to stderr goes to a file each."""
        for rank in range(self.ranks):
            environment = os.environ | {
                "TALLYMARK_RANK": str(rank),
                "TALLYMARK_WORLD_SIZE": str(self.ranks),
                "TALLYMARK_LAUNCH_ID": launch_id,
                "TMPDIR": str(scratch),  # a rank that is killed leaves its temporary folder to us
            }
            log = scratch / f"{launch_id}-rank-{rank}.log"
            with log.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tallymark.cli.demo_rank"],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
            self.processes.append(process)
            self._logs.append(log)
            stall_at = self._stall[1] if self._stall and self._stall[0] == rank else None
            self._tell(rank, json.dumps({**self._settings, "stall_at": stall_at}))
            assert process.stdout is not None
            reader = threading.Thread(target=self._read, args=(rank, process.stdout), daemon=True)
            reader.start()
            self._readers.append(reader)

    def run(self, on_event: Callable[[int, Event], None], *, deadline: float) -> None:
        """Pass on what the ranks tell until all have ended. Raises DemoFailed after `deadline` (monotonic)."""
        ready = 0
        while len(self.codes) < self.ranks:
            try:
                rank, event = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                alive = [rank for rank in range(self.ranks) if rank not in self.codes]
                raise DemoFailed(
                    f"launch {self.number}: ranks {alive} did not end in time{self.last_words()}"
                ) from None
            if event is None:
                self.codes[rank] = self.processes[rank].wait()
                if ready < self.ranks:
                    raise DemoFailed(f"launch {self.number}: rank {rank} did not start{self.last_words()}")
                continue
            self.events[rank].append(event)
            if event["event"] == "ready":
                ready += 1
                if ready == self.ranks:
                    for other in range(self.ranks):
                        self._tell(other, "go")
                continue
            on_event(rank, event)

    def kill(self, rank: int) -> None:
        """End a rank at once, as the kernel or a failing node would."""
        self.processes[rank].send_signal(signal.SIGKILL)

    def told(self, rank: int, event: str) -> list[Event]:
        """The events of one kind that a rank told, in order."""
        return [told for told in self.events[rank] if told["event"] == event]

    def last_words(self) -> str:
        """The ends of what the ranks wrote to stderr, for a message; "" if nothing."""
        words = []
        for rank, log in enumerate(self._logs):
            lines = log.read_text(errors="replace").strip().splitlines()[-6:]
            words += [f"\n  rank {rank}: {line}" for line in lines]
        return "".join(words)

    def _tell(self, rank: int, line: str) -> None:
        stdin = self.processes[rank].stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, and its reader says so
            stdin.write(line + "\n")
            stdin.flush()

    def _read(self, rank: int, stdout: IO[str]) -> None:
        for line in stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed
            self._queue.put((rank, event))
        self._queue.put((rank, None))

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *problem: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self.processes:
            for stream in (process.stdout, process.stdin):
                if stream is not None:
                    _close(stream)


def _close(stream: IO[str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.close()
