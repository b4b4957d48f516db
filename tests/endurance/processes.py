"""Child processes that are waited for by what they say, never by sleeping, and that never outlive a test.

They come from `multiprocessing`'s fork server: a process that has imported the library, and has used nothing of it, is
forked. That saves the second that importing s3fs takes, of which there would be hundreds.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.endurance import child

WAIT_S = 60.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.endurance.child", "tallymark.store.s3"])
_numbers = itertools.count()


class Child:
    """One process in one role of `child.py`."""

    def __init__(self, role: str, spec: Mapping[str, Any], tmp: Path) -> None:
        self._log = tmp / f"stderr-{next(_numbers)}"
        self._conn, theirs = _context.Pipe()
        self._process = _context.Process(target=child.main, args=(role, dict(spec), theirs, str(self._log)))
        self._process.start()
        theirs.close()

    def say(self, word: str) -> None:
        self._conn.send(word)

    def expect(self, word: str, *, within_s: float = WAIT_S) -> dict[str, Any]:
        """The next message, which must be of this word."""
        assert self._conn.poll(within_s), f"no {word!r} within {within_s:g} s; {self._told()}"
        try:
            message: dict[str, Any] = self._conn.recv()
        except EOFError:
            raise AssertionError(f"the child ended before it said {word!r}; {self._told()}") from None
        assert message["word"] == word, f"{message}; {self._told()}"
        return message

    def heard(self, word: str, *, within_s: float = 0.0) -> bool:
        """Whether it says something within a time, which must be this word."""
        if not self._conn.poll(within_s):
            return False
        self.expect(word)
        return True

    def wait(self, *, within_s: float = WAIT_S) -> int:
        """The exit code; minus the signal for a child that was killed."""
        self._process.join(within_s)
        assert self._process.exitcode is not None, f"the child did not end within {within_s:g} s; {self._told()}"
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, if it is still there."""
        if self._process.exitcode is None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        self.kill()
        self._process.close()
        self._conn.close()

    def _told(self) -> str:
        return f"its stderr:\n{self._log.read_text(errors='replace') if self._log.exists() else ''}"


@contextmanager
def start(role: str, spec: Mapping[str, Any], tmp: Path) -> Iterator[Child]:
    """A process, which is gone at the end of the block."""
    made = Child(role, spec, tmp)
    try:
        yield made
    finally:
        made.close()


def killed_at(role: str, spec: Mapping[str, Any], kill: Mapping[str, str], tmp: Path) -> None:
    """Run a role until it is killed at an operation; that it was, and nowhere else, is asserted."""
    with start(role, {**spec, "kill": dict(kill)}, tmp) as process:
        assert process.expect("reached")["label"] == kill["label"]
        assert process.wait() == -signal.SIGKILL


def points(labels: Sequence[str]) -> list[dict[str, str]]:
    """Every operation, before and after it."""
    return [{"when": when, "label": label} for label in labels for when in ("before", "after")]


def points_that_differ(labels: Sequence[str], kind: str) -> list[dict[str, str]]:
    """All points on a local folder. On S3, where a process costs seconds, not those after a look: the store is then
    as it was before."""
    looks = ("read", "list", "size", "open")
    return [
        point
        for point in points(labels)
        if kind == "local" or point["when"] == "before" or not point["label"].startswith(looks)
    ]
