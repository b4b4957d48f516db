"""A long run: 8 ranks that never wait, 2 drivers, 200 steps; and the same while one of the drivers is killed every
second.

Judged by `checker`, which reads the objects themselves and shares nothing with the library but the specification.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.endurance.checker import Story, check
from tests.endurance.places import Place
from tests.endurance.processes import Child, start

import tallymark

RANKS, STEPS, LIMIT_S = 8, 200, 500.0


def savers(step: int) -> list[int]:
    """As `child.train` has it."""
    return [rank for rank in range(RANKS) if (step + rank) % 4 == 0 and step % 5 != 4]


def start_ranks(place: Place, tmp: Path, stack: contextlib.ExitStack) -> list[Child]:
    who = {"world_size": RANKS, "launch_id": "soak", "barrier_timeout_s": 600.0}
    specs = [
        place.spec(steps=STEPS, wait_s=LIMIT_S, join={**who, "rank": rank, "join_timeout_s": 100.0})
        for rank in range(RANKS)
    ]
    return [stack.enter_context(start("train", spec, tmp)) for spec in specs]


def judge(place: Place) -> Story:
    """Every step decided once and committed, with the right ranks, metrics and files."""
    story = check(place.dump())
    kinds = Counter(entry["kind"] for entry in story.entries)
    assert kinds == {"genesis": 1, "attempt": 1, "commit": STEPS, "finish": 1}
    assert sorted(story.fates) == [(1, step) for step in range(STEPS)]
    for (_, step), entry in story.fates.items():
        assert entry["metrics"] == {"step": step, "rank": 0}
        ranges = (entry["checkpoint"] or {"ranks": []})["ranks"]
        assert [rank for first, last in ranges for rank in range(first, last + 1)] == savers(step)
    assert story.sealed + story.unsealed == sum(1 for step in range(STEPS) if savers(step))
    return story


@pytest.mark.timeout(600)
@pytest.mark.rule("J15", "J22", "B16")
def test_eight_ranks_two_drivers_two_hundred_steps(place, tmp_path):
    with contextlib.ExitStack() as stack:
        drivers = [stack.enter_context(start("driver", place.spec(), tmp_path)) for _ in range(2)]
        ranks = start_ranks(place, tmp_path, stack)
        for process in (*ranks, *drivers):
            process.expect("driving" if process in drivers else "reported", within_s=LIMIT_S)
        for process in (*ranks, *drivers):
            process.expect("done", within_s=LIMIT_S)
            assert process.wait() == 0
    story = judge(place)
    assert story.unsealed == 0
    assert [key for key in place.dump() if key.startswith("markers/")] == []


@pytest.mark.timeout(600)
@pytest.mark.rule("J15", "B17")
def test_the_same_while_a_driver_is_killed_every_second(place, tmp_path):
    killed = 0
    with contextlib.ExitStack() as stack:
        steady = stack.enter_context(start("driver", place.spec(), tmp_path))
        ranks = start_ranks(place, tmp_path, stack)
        end = time.monotonic() + LIMIT_S
        steady.expect("driving")
        while not steady.heard("done") and time.monotonic() < end:
            with start("driver", place.spec(), tmp_path) as victim:
                victim.expect("driving")
                if not victim.heard("done", within_s=1.0):
                    victim.kill()
                    killed += victim.wait() == -signal.SIGKILL  # 0: it has just ended by itself
        assert steady.wait() == 0
        for process in ranks:
            process.expect("reported")
            process.expect("done")
            assert process.wait() == 0
    assert killed >= 2
    story = judge(place)
    manifests = tallymark.open(None, store=place.store).history()
    assert [manifest.step for manifest in manifests] == list(range(STEPS))
    print(f"{killed} drivers killed; {story.sealed} sealed, {story.unsealed} not")
