"""A driver is killed before and after every store operation of a commit, and rank 0 at every one of its join.

Whoever comes next finds one decision per step, seals it and sweeps it. The lists of operations come from the code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.endurance.checker import Story, check
from tests.endurance.places import Place
from tests.endurance.processes import killed_at, points, points_that_differ, start

import tallymark
from tallymark.adopted import opener
from tallymark.register import Patience
from tallymark.store.port import RunStore
from tallymark.testing.counting import CountingStore, Operation

COMMIT = [
    "list markers/000001/ #1",
    "put tallies/* #1",
    "list markers/000001/ #2",
    "read markers/000001/0000000000000000/000000-000000.empty.* #1",
    "read markers/000001/0000000000000000/000001-000001.saved.* #1",
    "list checkpoints/0000000000000000-000001/ #1",
    "create journal/0000000002.json #1",
    "put hint.json #1",
    "read tallies/* #1",
    "read markers/000001/0000000000000000/000001-000001.saved.* #2",
    "put checkpoints/0000000000000000-000001/_tallymark/inventory.jsonl.gz #1",
    "put checkpoints/0000000000000000-000001/_tallymark/manifest.json #1",
    "read checkpoints/0000000000000000-000001/_tallymark/inventory.jsonl.gz #1",
    "delete markers/000001/0000000000000000/000000-000000.empty.* #1",
    "list markers/000001/ #3",
]
ABORT = [
    "create journal/0000000002.json #1",
    "delete markers/000001/0000000000000000/000000-000000.failed.* #1",
]


class Clock:
    """Monotonic time that the test can move on."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


def finish_off(place: Place) -> Story:
    """What a second driver makes of it, once it no longer leaves sealing to the first."""
    clock = Clock()
    driver = tallymark.Driver.over(place.store, opener(None), Patience(clock=clock))
    driver.poll()
    clock.ahead_s += 100.0
    driver.poll()
    return check(place.dump())


def join(place: Place, rank: int, launch: str, *, store: RunStore | None = None) -> tallymark.Worker:
    return tallymark.join(
        None, rank=rank, world_size=2, launch_id=launch, host_driver=False, store=store or place.store
    )


def two_ranks_report(place: Place, tmp: Path) -> None:
    folder = tmp / "shard"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "a.bin").write_bytes(b"a" * 1000)
    (folder / "deep" / "empty").write_bytes(b"")
    for rank, checkpoint in ((0, None), (1, folder)):
        join(place, rank, "first").report({"rank": rank}, checkpoint, step=0)


def one_rank_fails(place: Place, tmp: Path) -> None:
    def refuse(operation: Operation) -> None:
        if operation.name == "upload":
            raise tallymark.StoreError("no room", key=operation.key, retryable=False)

    (tmp / "file.bin").write_bytes(b"x")
    worker = join(place, 0, "first", store=CountingStore(place.store, before=refuse))
    with pytest.raises(tallymark.StoreError):
        worker.report({}, tmp / "file.bin", step=0)


def operations(role: str, place: Place, tmp: Path, spec: Mapping[str, Any]) -> list[str]:
    with start(role, spec, tmp) as child:
        labels: list[str] = child.expect("done")["labels"]
        child.wait()
    return labels


@pytest.mark.timeout(600)
@pytest.mark.rule("B17", "J15", "B15")
def test_a_driver_killed_at_every_operation_of_a_commit(place, tmp_path):
    dry = place.run()
    two_ranks_report(dry, tmp_path)
    labels = operations("drive", dry, tmp_path, dry.spec())
    journal = [name for name in labels if name.startswith("read journal/")]
    assert sorted(labels) == sorted(COMMIT + journal)
    reached = []
    for kill in points_that_differ(labels, place.kind):
        run = place.run()
        two_ranks_report(run, tmp_path)
        killed_at("drive", run.spec(), kill, tmp_path)
        check(run.dump())

        story = finish_off(run)
        assert [entry["kind"] for entry in story.entries] == ["genesis", "attempt", "commit"], kill
        assert (story.sealed, story.unsealed) == (1, 0), kill
        assert [key for key in run.dump() if key.startswith("markers/")] == [], kill
        found = tallymark.open(None, store=run.store).latest()
        assert found is not None and found.checkpoint is not None and found.checkpoint.verify() == 2, kill
        reached.append((kill["when"], kill["label"]))
    assert sorted(label for when, label in reached if when == "before") == sorted(COMMIT + journal)


@pytest.mark.rule("J15", "B2")
def test_a_driver_killed_at_every_operation_of_an_abort(local, tmp_path):
    dry = local.run()
    one_rank_fails(dry, tmp_path)
    labels = operations("drive", dry, tmp_path, dry.spec())
    assert set(ABORT) <= set(labels)
    for kill in points(labels):
        run = local.run()
        one_rank_fails(run, tmp_path)
        killed_at("drive", run.spec(), kill, tmp_path)
        story = finish_off(run)
        assert [entry["kind"] for entry in story.entries] == ["genesis", "attempt", "abort"], kill
        assert [key for key in run.dump() if key.startswith("markers/")] == [], kill


def rank_0(place: Place, launch: str) -> dict[str, Any]:
    return place.spec(join={"rank": 0, "world_size": 2, "launch_id": launch})


@pytest.mark.timeout(600)
@pytest.mark.rule("J2", "L4", "L9")
def test_an_opener_killed_at_every_operation_of_the_first_launch(place, tmp_path):
    dry = place.run()
    labels = operations("opens", dry, tmp_path, rank_0(dry, "first"))
    assert {"create journal/0000000000.json #1", "put journal/0000000000.json #1"} & set(labels)
    assert {"create journal/0000000001.json #1", "put members/000001/000000.*.json #1"} <= set(labels)
    for kill in points_that_differ(labels, place.kind):
        run = place.run()
        killed_at("opens", rank_0(run, "first"), kill, tmp_path)
        goes_on(run, tmp_path, kill)
        kinds = [entry["kind"] for entry in check(run.dump()).entries]
        assert kinds in (["genesis", "attempt", "commit"], ["genesis", "attempt", "attempt", "commit"]), kill


@pytest.mark.timeout(600)
@pytest.mark.rule("L4", "L6", "J15")
def test_an_opener_killed_at_every_operation_of_a_second_launch(place, tmp_path):
    """It finds a complete step that nobody has decided, settles it, and opens its attempt upon it."""
    dry = place.run()
    two_ranks_report(dry, tmp_path)
    labels = operations("opens", dry, tmp_path, rank_0(dry, "second"))
    wanted = ["create journal/0000000002.json #1", "create journal/0000000003.json #1", "put tallies/* #1"]
    assert {*wanted, "put members/000002/000000.*.json #1"} <= set(labels)
    for kill in points_that_differ(labels, place.kind):
        run = place.run()
        two_ranks_report(run, tmp_path)
        killed_at("opens", rank_0(run, "second"), kill, tmp_path)
        goes_on(run, tmp_path, kill)
        story = finish_off(run)
        assert story.committed(1) == [0], kill
        assert story.entries[-2]["base"] == {"slot": 2, "step": 0, "run_url": None, "run_id": None}, kill
        assert (story.sealed, story.unsealed) == (2, 0), kill


def goes_on(place: Place, tmp: Path, kill: Mapping[str, str]) -> None:
    """The job is launched once more, and commits the next step."""
    folder = tmp / "next"
    folder.mkdir(exist_ok=True)
    (folder / "next.bin").write_bytes(b"next")
    workers = [join(place, rank, "next") for rank in (0, 1)]
    reports = [worker.report({}, folder, step=worker.first_step) for worker in workers]
    driver = tallymark.Driver(None, store=place.store)
    driver.poll()
    assert {report.wait(60).step for report in reports} == {workers[0].first_step}, kill
    for worker in workers:
        worker.leave()


@pytest.mark.rule("B17")
def test_a_commit_that_cannot_be_sealed_keeps_its_markers_and_holds_up_no_other(local, tmp_path, caplog):
    """A driver was killed before it sealed, and then somebody deleted the tally."""
    two_ranks_report(local, tmp_path)
    kill = {"when": "after", "label": "create journal/0000000002.json #1"}
    killed_at("drive", local.spec(), kill, tmp_path)
    [tally] = (key for key in local.dump() if key.startswith("tallies/"))
    local.store.delete([tally])
    goes_on(local, tmp_path, kill)
    clock = Clock()
    driver = tallymark.Driver.over(local.store, opener(None), Patience(clock=clock))
    for _ in range(10):
        driver.poll()
        clock.ahead_s += 20.0
    objects = local.dump()
    assert "checkpoints/0000000000000001-000002/_tallymark/inventory.jsonl.gz" in objects
    assert {key[:31] for key in objects if key.startswith("markers/")} == {"markers/000001/0000000000000000"}
    assert [record.message for record in caplog.records if "stays unsealed" in record.message] == [
        next(record.message for record in caplog.records if "stays unsealed" in record.message)
    ]


@pytest.mark.rule("B17")
def test_a_store_that_cannot_delete_or_seal_is_asked_again_later_and_seldom(local, tmp_path, caplog):
    two_ranks_report(local, tmp_path)
    store = CountingStore(local.store)
    out_of_order = True

    def before(operation: Operation) -> None:
        if out_of_order and (operation.name == "delete" or "_tallymark/" in operation.key):
            raise tallymark.StoreError("out of order", key=operation.key, retryable=False)

    store.before = before
    clock = Clock()
    driver = tallymark.Driver.over(store, opener(None), Patience(clock=clock))
    for _ in range(20):
        driver.poll()
    assert len([record for record in caplog.records if "put off" in record.message]) == 1
    assert check(local.dump()).unsealed == 1
    out_of_order = False
    for _ in range(3):
        clock.ahead_s += 20.0
        driver.poll()
    objects = local.dump()
    assert check(objects).sealed == 1 and not [key for key in objects if key.startswith("markers/")]
