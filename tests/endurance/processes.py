"""Child processes that can be waited for by what they say, never by sleeping, and that never outlive a test."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0


class Child:
    """A Python process. Its lines are JSON objects with a `word`, or plain text."""

    def __init__(self, arguments: Sequence[str], tmp: Path, *, flags: Sequence[str] = ()) -> None:
        self._log = tmp / f"stderr-{time.monotonic_ns()}"
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TALLYMARK_", "SLURM_"))},
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "TALLYMARK_TEST_TMP": str(tmp),
        }
        with open(self._log, "wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, *flags, *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, env=environ, cwd=tmp,
            )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode().rstrip("\n"))
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def line(self, *, within_s: float = WAIT_S) -> str | None:
        """The next line, or None at the end of the output."""
        try:
            return self._lines.get(timeout=within_s)
        except queue.Empty:
            raise AssertionError(f"the child said nothing within {within_s:g} s; stderr:\n{self.stderr()}") from None

    def expect(self, word: str, *, within_s: float = WAIT_S) -> dict[str, Any]:
        """The next line, which must be of this word."""
        line = self.line(within_s=within_s)
        assert line is not None, f"the child ended before it said {word!r}; stderr:\n{self.stderr()}"
        message: dict[str, Any] = json.loads(line)
        assert message["word"] == word, f"{line}; stderr:\n{self.stderr()}"
        return message

    def wait(self, *, within_s: float = WAIT_S) -> int:
        """The exit code; minus the signal for a child that was killed."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the child did not end within {within_s:g} s; stderr:\n{self.stderr()}") from None

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WAIT_S)

    def stderr(self) -> str:
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.ended():
            self.kill()
        self._reader.join(WAIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def start(role: str, spec: Mapping[str, Any], tmp: Path) -> Child:
    """A process of `child.py`."""
    child = Child([str(Path(__file__).with_name("child.py")), role], tmp)
    child.say(json.dumps(spec))
    return child


def killed_at(role: str, spec: Mapping[str, Any], kill: Mapping[str, str], tmp: Path) -> None:
    """Run a role until it is killed at an operation; that it was, and nowhere else, is asserted."""
    with start(role, {**spec, "kill": kill}, tmp) as child:
        assert child.expect("reached")["label"] == kill["label"]
        assert child.wait() == -signal.SIGKILL


def points(labels: Sequence[str]) -> list[dict[str, str]]:
    """Every operation, before and after it."""
    return [{"when": when, "label": label} for label in labels for when in ("before", "after")]
