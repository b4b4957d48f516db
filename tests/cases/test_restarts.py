"""Cases from the field about dying and beginning again: 5, 7."""

from __future__ import annotations

import hashlib

import pytest
from tests.behaviours.fleet import do, report, say

from tallymark import records
from tallymark.register import Patience
from tallymark.seal import is_sealed, seal


@pytest.mark.rule("L6", "L10")
@pytest.mark.parametrize("hosted", [True, False])
def test_a_step_whose_markers_are_all_there_is_committed_by_the_next_launch(shared_place, fleet, hosted):
    """Case 5: rank 0 and the driver die at once, also in the middle of the commit: before the slot is written."""
    place, ships = shared_place, fleet(shared_place)
    saved = [ships.shard(f"{rank}", {f"{rank}.bin": "x"}) for rank in (0, 1)]
    hooks = {0: [{"call": "create", "key": r"journal/0000000002", "do": "die", "name": "died"}]} if hosted else {}
    last = do("await", "died") if hosted else do("die", "died")
    launch = ships.launch(
        "a",
        [[say(9, path=saved[0]), last], [say(9, path=saved[1]), do("await", "died"), do("die", "other")]],
        hooks=hooks,
        host_driver=None if hosted else False,
    )
    launch.wait_until_ended()
    assert place.committed() == []
    told = ships.launch("b", [[report(10)], [report(10)]]).outcomes()
    for said in told.values():
        assert (said[0]["first_step"], said[0]["base"]["step"], said[0]["attempt"]) == (10, 9, 2)
    assert place.committed() == [(1, 9), (2, 10)]
    checkpoint = place.open().at(9).checkpoint
    assert checkpoint is not None and checkpoint.verify() == 2


@pytest.mark.rule("B17")
def test_a_driver_that_dies_before_sealing_loses_nothing(shared_place, fleet):
    """Case 5: readers read the markers meanwhile, and whoever comes next seals, to the same effect."""
    place, ships = shared_place, fleet(shared_place)
    saved = ships.shard("one", {"a.bin": "x"})
    hooks = {0: [{"call": "put", "key": "_tallymark/inventory", "do": "die", "name": "died"}]}
    ships.launch("a", [[say(9, path=saved), do("await", "never")]], hooks=hooks).wait_until_ended()
    [commit] = place.entries(records.Commit)
    store = place.store()
    assert not is_sealed(store, commit, Patience())
    before = place.open().at(9).checkpoint
    assert before is not None and before.verify() == 1
    seal(store, commit, Patience())
    for key in place.keys("markers/"):
        store.delete([key])
    after = place.open().at(9).checkpoint
    assert after is not None and after.files() == before.files()


@pytest.mark.rule("L10", "N7")
def test_a_step_saved_again_and_half_way_leaves_the_latest_whole(shared_place, fleet, tmp_path):
    """Case 7: the later attempt resumed before step 5, and is killed while it saves step 5 again."""
    place, ships = shared_place, fleet(shared_place)
    saved = [ships.shard(f"{rank}", {f"{rank}.bin": f"first {rank}"}) for rank in (0, 1)]
    again = [ships.shard(f"again-{rank}", {f"{rank}.bin": f"again {rank}", "z": "z"}) for rank in (0, 1)]
    ships.run("a", [[report(3, path=saved[rank]), report(5, path=saved[rank])] for rank in (0, 1)])
    hooks = {1: [{"call": "upload", "key": "/z$", "do": "die", "name": "died"}]}
    launch = ships.launch(
        "b",
        [[say(5, path=again[0]), do("await", "died"), do("die", "too")], [say(5, path=again[1])]],
        hooks=hooks,
        resume=3,
    )
    launch.wait_until_ended()
    latest = place.open().latest()
    assert latest is not None and (latest.step, latest.attempt) == (3, 1)
    told = ships.launch("c", [[], []]).outcomes()
    assert [said[0]["base"]["step"] for said in told.values()] == [3, 3]
    assert [(entry.attempt, entry.step) for entry in place.entries(records.Commit)] == [(1, 3), (1, 5)]
    for commit in place.entries(records.Commit):
        there = {
            key.removeprefix(commit.checkpoint.path): place.store().read(key)
            for key in place.keys(commit.checkpoint.path)
            if "/_tallymark/" not in key
        }
        assert there == {f"{rank}.bin": f"first {rank}".encode() for rank in (0, 1)}
    assert latest.checkpoint is not None
    folder = latest.checkpoint.download(tmp_path / "down")
    for file in latest.checkpoint.files():
        assert hashlib.sha256((folder / file.path).read_bytes()).hexdigest() == file.digest
