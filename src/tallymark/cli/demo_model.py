"""What the demo trains: an ensemble of small logistic regressions, in pure Python, exactly reproducible.

The members share nothing, so that ranks need not speak to one another, and any rank can carry any member on: its
weights, the momentum of its optimiser and the state of its random numbers are all that it is.
"""

from __future__ import annotations

import json
import math
import random
import struct
from functools import cache
from pathlib import Path
from typing import Any

MEMBERS = 12
FEATURES = 8
ROWS = 400
HELD_OUT = 100
BATCH = 8
RATE = 0.01
MOMENTUM = 0.9

Row = tuple[tuple[float, ...], int]


@cache
def data() -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Rows to train on and rows held out, the same in every process: noisy points on two sides of a plane."""
    chance = random.Random("the demo's data")
    plane = [chance.gauss(0, 1) for _ in range(FEATURES)]
    rows: list[Row] = []
    for _ in range(ROWS + HELD_OUT):
        point = tuple(chance.gauss(0, 1) for _ in plane)
        side = sum(a * b for a, b in zip(plane, point, strict=True)) + chance.gauss(0, 0.5)
        rows.append((point, int(side > 0)))
    return tuple(rows[:ROWS]), tuple(rows[ROWS:])


def share(rank: int, world_size: int) -> list[int]:
    """The members that a rank trains: neighbours, as many on every rank."""
    return list(range(rank * MEMBERS // world_size, (rank + 1) * MEMBERS // world_size))


def state_file(number: int) -> str:
    """The file of a member that training resumes from."""
    return f"member-{number:02d}.state.json"


def weights_file(number: int) -> str:
    """The file of a member's weights alone, as an evaluation would want them."""
    return f"member-{number:02d}.weights.bin"


class Member:
    """One regression: weights (the bias last), momentum, and its own random numbers."""

    def __init__(self, number: int, weights: list[float], momentum: list[float], chance: random.Random) -> None:
        self.number = number
        self.weights = weights
        self.momentum = momentum
        self.chance = chance

    @classmethod
    def new(cls, number: int) -> Member:
        """The member before its first step."""
        chance = random.Random(f"member {number}")
        return cls(number, [chance.gauss(0, 1) for _ in range(FEATURES + 1)], [0.0] * (FEATURES + 1), chance)

    def train(self) -> None:
        """One step of stochastic gradient descent with momentum, on a batch of its own choosing."""
        batch = self.chance.sample(data()[0], BATCH)
        slope = [0.0] * (FEATURES + 1)
        for point, label in batch:
            error = self._predict(point) - label
            for index, value in enumerate((*point, 1.0)):
                slope[index] += error * value / BATCH
        self.momentum = [MOMENTUM * old + new for old, new in zip(self.momentum, slope, strict=True)]
        self.weights = [weight - RATE * push for weight, push in zip(self.weights, self.momentum, strict=True)]

    def loss(self) -> float:
        """Mean cross entropy on the rows held out."""
        total = 0.0
        for point, label in data()[1]:
            guess = min(max(self._predict(point), 1e-12), 1 - 1e-12)
            total -= math.log(guess if label else 1 - guess)
        return total / HELD_OUT

    def _predict(self, point: tuple[float, ...]) -> float:
        score = sum(a * b for a, b in zip(self.weights, (*point, 1.0), strict=True))
        return 1 / (1 + math.exp(-max(-500.0, min(500.0, score))))

    # ------------------------------------------------------------------------------------- its files

    def state(self) -> bytes:
        """All that it is, as bytes: two members are the same if these are."""
        state = {"weights": self.weights, "momentum": self.momentum, "random": self.chance.getstate()}
        return json.dumps(state).encode()

    def save(self, folder: Path, *, weights_only: bool) -> None:
        """Write its file to a folder."""
        if weights_only:
            (folder / weights_file(self.number)).write_bytes(struct.pack(f"<{FEATURES + 1}d", *self.weights))
        else:
            (folder / state_file(self.number)).write_bytes(self.state())

    @classmethod
    def load(cls, number: int, state: bytes) -> Member:
        """The member that this state is."""
        known: dict[str, Any] = json.loads(state)
        chance = random.Random()
        version, inner, gauss = known["random"]
        chance.setstate((version, tuple(inner), gauss))
        return cls(number, known["weights"], known["momentum"], chance)
