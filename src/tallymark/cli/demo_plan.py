"""What the demo plays, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tallymark.cli.demo_launch import Launch

STEPS = 80
EVERY = 10
"""Training steps between two reports."""
RANKS = {1: 4, 2: 3}
"""Launch -> its world size."""
SAVERS: dict[int, dict[int, list[int]]] = {
    1: {10: [0, 1, 2, 3], 20: [2], 30: [1, 3], 40: [], 50: [0, 1, 2, 3], 60: [0, 1, 2, 3]},
    2: {60: [0, 1, 2], 70: [1], 80: [0, 1, 2]},
}
"""Launch -> step -> the ranks that save at it."""
KILLED_RANK = 2
KILLED_STEP = 60
BASE_STEP = KILLED_STEP - EVERY
BARRIER_TIMEOUT_S = {"folder": 3.0, "object store": 5.0}
"""Short, so that nobody waits long for the rank that was killed."""
LIMIT_S = 180.0
"""When the demo gives up."""


@dataclass
class Expectation:
    """Something that must be so, and whether it is."""

    what: str
    ok: bool
    detail: str


@dataclass
class Outcome:
    """All that is known about a demo's run."""

    url: str
    kept: bool = False
    seconds: float = 0.0
    killed: dict[str, Any] = field(default_factory=dict)
    launches: dict[int, Launch] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    verified: dict[str, int] = field(default_factory=lambda: {"checkpoints": 0, "files": 0, "bytes": 0})
    expectations: list[Expectation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything was judged, and everything is as it must be."""
        return bool(self.expectations) and all(one.ok for one in self.expectations)

    def expect(self, what: str, ok: bool, detail: str = "") -> None:
        """Note an expectation; `detail` is shown if it does not hold."""
        self.expectations.append(Expectation(what, ok, "" if ok else detail))
