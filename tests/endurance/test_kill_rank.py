"""A rank is killed before and after every store operation of `report`: nothing is lost, and nothing half is committed.

The list of operations comes from the code, by a counting store in a process that is not killed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.endurance.checker import check
from tests.endurance.places import Place
from tests.endurance.processes import Child, points_that_differ, start

import tallymark

SHORT_S = 0.5
EXPECTED = [
    "read journal/0000000002.json #1",  # what became of the step before
    "read journal/0000000003.json #1",
    "upload checkpoints/0000000000000001-000001/a.bin #1",
    "upload checkpoints/0000000000000001-000001/deep/b.bin #1",
    "put markers/000001/0000000000000001/000001-000001.saved.* #1",
]


def join(place: Place, rank: int, launch: str, **more: Any) -> tallymark.Worker:
    return tallymark.join(
        None, rank=rank, world_size=2, launch_id=launch, barrier_timeout_s=SHORT_S, store=place.store, **more
    )


def spec_of(place: Place, kill: Mapping[str, str] | None) -> dict[str, Any]:
    who = {"rank": 1, "world_size": 2, "launch_id": "first", "barrier_timeout_s": SHORT_S}
    return place.spec(kill=kill, join=who)


def first_launch(place: Place, tmp: Path, kill: Mapping[str, str] | None) -> tuple[list[str], str]:
    """Rank 0 here, rank 1 in a child. What rank 1 did at step 1, and what rank 0 was told of that step."""
    with join(place, 0, "first") as worker, start("report", spec_of(place, kill), tmp) as child:
        child.expect("reported")
        assert worker.report({"rank": 0}, step=0).wait(60).checkpoint is not None
        child.say("go")
        labels = told_by(child, kill)
        report = worker.report({"rank": 0}, step=1)
        try:
            answer = f"committed {report.wait(60).step}"
        except tallymark.BarrierTimeout as problem:
            assert problem.ranks == (1,)
            answer = "timeout"
        child.kill()
    return labels, answer


def told_by(child: Child, kill: Mapping[str, str] | None) -> list[str]:
    if kill is None:
        return list(child.expect("done")["labels"])
    assert child.expect("reached")["label"] == kill["label"]
    assert child.wait() == -9
    return []


def launch_again(place: Place, tmp: Path, *, committed: bool) -> None:
    """Both ranks, here: they resume from the newest commit, and go on to step 2."""
    folder = tmp / "again"
    folder.mkdir(exist_ok=True)
    (folder / "file.bin").write_bytes(b"again")
    workers: dict[int, tallymark.Worker] = {}

    def sit(rank: int) -> None:
        workers[rank] = join(place, rank, "second", host_driver=False)

    seats = [threading.Thread(target=sit, args=(rank,)) for rank in (0, 1)]
    for seat in seats:
        seat.start()
    for seat in seats:
        seat.join(60)
    driver = tallymark.Driver(None, store=place.store)
    assert {worker.first_step for worker in workers.values()} == {2 if committed else 1}
    for step in range(workers[0].first_step, 3):
        for rank, worker in workers.items():
            worker.report({"rank": rank}, folder if rank == 1 else None, step=step)
        driver.poll()
    for worker in workers.values():
        worker.leave()


@pytest.mark.timeout(600)
@pytest.mark.rule("B17", "L6", "L10", "B9")
def test_a_rank_killed_at_every_operation_of_a_report(place, tmp_path):
    reached = {}
    labels, answer = first_launch(place.run(), tmp_path, None)
    assert (sorted(labels), answer) == (sorted(EXPECTED), "committed 1")
    for kill in points_that_differ(labels, place.kind):
        run = place.run()
        _, answer = first_launch(run, tmp_path, kill)
        before = run.dump()
        story = check(before)
        published = kill == {"when": "after", "label": EXPECTED[-1]}
        assert answer == ("committed 1" if published else "timeout"), kill
        assert story.committed(1) == ([0, 1] if published else [0]), kill

        launch_again(run, tmp_path, committed=published)
        after = run.dump()
        story = check(after)
        assert sorted(story.committed()) == [0, 1, 2], kill
        journal = {key: body for key, body in before.items() if key.startswith("journal/")}
        assert {key: after[key] for key in journal} == journal, kill
        manifests = tallymark.open(None, store=run.store).history()
        assert [manifest.step for manifest in manifests] == [0, 1, 2]
        assert [m.checkpoint.verify("digest") for m in manifests if m.checkpoint] == [1, 2 if published else 1, 1]
        reached[kill["when"], kill["label"]] = answer
    assert {label for when, label in reached if when == "before"} == set(EXPECTED)
