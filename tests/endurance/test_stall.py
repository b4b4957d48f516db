"""A driver or an opener stops before any one of its operations, somebody else does everything, and it goes on.

What it does then is what a suspended or slow process does. In one process, so that every point is met exactly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.endurance.checker import check

import tallymark
from tallymark.store.memory import MemoryStore
from tallymark.testing.counting import CountingStore, Operation

STORES = {
    "create": lambda: MemoryStore(all_clients_create=True),
    "create after ballots": lambda: MemoryStore(),
    "ballots": lambda: MemoryStore(creates_exclusively=False),
}


@pytest.fixture(params=sorted(STORES))
def new_store(request) -> Callable[[], MemoryStore]:
    return STORES[request.param]


def dump(store: MemoryStore) -> dict[str, bytes]:
    return {item.key: store.read(item.key) or b"" for item in store.list("")}


def join(store: Any, rank: int, launch: str) -> tallymark.Worker:
    patience = {"join_timeout_s": 10.0, "store_timeout_s": 10.0}
    return tallymark.join(
        None,
        rank=rank,
        world_size=2,
        launch_id=launch,
        store=store,
        host_driver=False,
        barrier_timeout_s=600,
        **patience,
    )


def two_ranks_report(store: MemoryStore, tmp: Path, steps: int = 2) -> None:
    folder = tmp / "shard"
    folder.mkdir(exist_ok=True)
    (folder / "a.bin").write_bytes(b"a" * 100)
    workers = [join(store, rank, "first") for rank in (0, 1)]
    for step in range(steps):
        for worker in workers:
            worker.report({"rank": worker.rank}, folder if worker.rank else None, step=step)


def everything(store: MemoryStore) -> None:
    """Another driver decides, seals and sweeps."""
    driver = tallymark.Driver(None, store=store)
    for _ in range(3):
        driver.poll()


def at_each_operation(
    make: Callable[[], MemoryStore], play: Callable[[CountingStore], None], other: Callable[[MemoryStore], None]
) -> list[MemoryStore]:
    """Play with `other` coming in before the first, the second ... operation, until there is none left."""
    ended: list[MemoryStore] = []
    came_in = True
    while came_in:
        came_in = False
        inner = make()
        number = len(ended)

        def before(operation: Operation, inner: MemoryStore = inner, number: int = number) -> None:
            nonlocal came_in
            if operation.number == number:
                came_in = True
                other(inner)

        play(CountingStore(inner, before=before))
        ended.append(inner)
    assert len(ended) > 10
    return ended


@pytest.mark.rule("J9", "J15", "G1")
def test_a_driver_stalls_while_another_does_everything(new_store, tmp_path):
    def make() -> MemoryStore:
        store = new_store()
        two_ranks_report(store, tmp_path)
        return store

    def play(store: CountingStore) -> None:
        driver = tallymark.Driver(None, store=store)
        for _ in range(8):
            driver.poll()

    for store in at_each_operation(make, play, everything):
        story = check(dump(store))
        assert [entry["kind"] for entry in story.entries] == ["genesis", "attempt", "commit", "commit"]
        assert (story.sealed, story.unsealed) == (2, 0)
        assert [key for key in dump(store) if key.startswith("markers/")] == []


@pytest.mark.rule("L6", "J9")
def test_an_opener_stalls_while_a_driver_does_everything(new_store, tmp_path):
    def make() -> MemoryStore:
        store = new_store()
        two_ranks_report(store, tmp_path)
        return store

    def play(store: CountingStore) -> None:
        worker = join(store, 0, "second")
        assert (worker.attempt, worker.first_step) == (2, 2)

    for store in at_each_operation(make, play, everything):
        kinds = [entry["kind"] for entry in check(dump(store)).entries]
        assert kinds == ["genesis", "attempt", "commit", "commit", "attempt"]


@pytest.mark.rule("L5", "J13")
def test_an_opener_stalls_while_another_launch_is_admitted(new_store, tmp_path):
    """Either it finds the other launch there when it joins, and comes after it; or it was late, and is told so."""
    answers: list[str] = []

    def make() -> MemoryStore:
        store = new_store()
        two_ranks_report(store, tmp_path)
        return store

    def play(store: CountingStore) -> None:
        try:
            worker = join(store, 0, "second")
            answers.append(f"attempt {worker.attempt}")
        except tallymark.Superseded as problem:
            answers.append(f"superseded by {problem.live_attempt}")

    def other(store: MemoryStore) -> None:
        with contextlib.suppress(tallymark.Superseded):
            join(store, 0, "third")

    for store, answer in zip(at_each_operation(make, play, other), answers, strict=True):
        story = check(dump(store))
        launches = [entry["launch_id"] for entry in story.entries if entry["kind"] == "attempt"]
        assert story.committed(1) == [0, 1]
        if answer == "attempt 3":
            assert launches == ["first", "third", "second"]
        elif answer == "superseded by 3":
            raise AssertionError("two launches were admitted after it joined")
        else:
            assert "third" in launches or answer == "attempt 2"
    assert {"attempt 3", "superseded by 2", "attempt 2"} == set(answers)


@pytest.mark.rule("J2", "G1", "L4")
def test_two_openers_meet_at_the_first_slot(new_store):
    """The same launch twice: one genesis, one attempt, and the second process of rank 0 is told who has the seat."""
    answers: list[str] = []

    def play(store: CountingStore) -> None:
        try:
            answers.append(f"attempt {join(store, 0, 'only').attempt}")
        except tallymark.RankTaken:
            answers.append("taken")

    def other(store: MemoryStore) -> None:
        try:
            join(store, 0, "only")
        except tallymark.RankTaken:
            answers.append("other taken")

    for store in at_each_operation(new_store, play, other):
        assert [entry["kind"] for entry in check(dump(store)).entries] == ["genesis", "attempt"]
    assert set(answers) >= {"attempt 1", "taken"}


@pytest.mark.rule("L13", "N7")
@pytest.mark.parametrize("number", range(4))
def test_a_rank_stalls_in_its_report_while_a_new_launch_takes_over(new_store, tmp_path, number):
    """It soils its own folder only; what the new attempt commits stays whole; and its next call tells it."""
    folder = tmp_path / "shard"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"a" * 100)
    inner = new_store()
    join(inner, 0, "first")
    store = CountingStore(inner)
    late = join(store, 1, "first")
    came_in: list[str] = []
    mark = len(store.operations)

    def before(operation: Operation) -> None:
        if operation.number == mark + number:
            came_in.append(operation.name)
            workers = [join(inner, rank, "second") for rank in (0, 1)]
            for worker in workers:
                worker.report({}, folder, step=0)
            everything(inner)

    store.before = before
    answer = ""
    try:
        report = late.report({}, folder, step=0)
        if came_in:
            report.wait(10)
    except tallymark.Superseded as problem:
        answer = f"superseded by {problem.live_attempt}"
    assert (came_in, answer) == {
        0: (["read"], "superseded by 2"),
        1: (["upload"], "superseded by 2"),
        2: (["put"], "superseded by 2"),
        3: ([], ""),
    }[number]
    if came_in:
        story = check(dump(inner))
        assert (story.committed(1), story.committed(2)) == ([], [0])
        found = tallymark.open(None, store=inner).latest()
        assert found is not None and found.attempt == 2 and found.checkpoint is not None
        assert found.checkpoint.verify() == 1
        with pytest.raises(tallymark.Superseded):
            late.report({}, step=1)


@pytest.mark.rule("B17")
def test_many_commits_that_their_driver_never_sealed_keep_their_markers(tmp_path):
    """The driver that decided them is gone. One that had seen their markers learns of them all at once."""
    steps = 100
    store = MemoryStore(all_clients_create=True)
    folder = tmp_path / "shard"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"a" * 100)
    workers = [join(store, rank, "first") for rank in (0, 1)]
    driver = tallymark.Driver(None, store=store)
    for step in range(steps):
        workers[1].report({}, folder, step=step)
    for _ in range(4):
        driver.poll()
    for step in range(steps):
        workers[0].report({}, step=step)

    def dies_before_sealing(operation: Operation) -> None:
        if "_tallymark/" in operation.key or operation.name == "delete":
            raise tallymark.StoreError("killed", key=operation.key, retryable=False)

    tallymark.Driver(None, store=CountingStore(store, before=dies_before_sealing)).poll()
    for _ in range(4):
        driver.poll()
        story = check(dump(store))
        assert (sorted(story.committed()), story.unsealed) == (list(range(steps)), steps)
    history = tallymark.open(None, store=store).history()
    assert [manifest.checkpoint.verify() for manifest in history if manifest.checkpoint] == [1] * steps
