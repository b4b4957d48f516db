"""Cases from the field about who has reported, and what follows from it: 1-4, 6, 8, 10, 12, 16."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import s3fs
from tests.behaviours.fleet import Place, do, report, say, until, wait
from tests.cases import racer as racer_script

import tallymark
from tallymark import records

ROOT = Path(__file__).resolve().parents[2]
UPLOAD_OF_20 = r"/checkpoints/0+20-000001/"


@pytest.mark.rule("B16")
def test_ranks_beyond_0_save_and_rank_0_gives_the_metrics(shared_place, fleet):
    """Case 1."""
    place, ships = shared_place, fleet(shared_place)
    savers = {rank: ships.shard(f"{rank}", {f"{rank}.bin": "x"}) for rank in (2, 4, 6)}
    actions = []
    for rank in range(8):
        metrics = {"loss": 1.5} if rank == 0 else {"loss": 100.0 + rank, "mine": rank}
        actions.append([say(5, metrics=metrics, **({"path": savers[rank]} if rank in savers else {})), wait(5)])
    told = ships.run("a", actions, ranks_per_process=4 if place.kind == "s3" else 1)
    for said in told.values():
        assert said[1]["checkpoint"]["ranks"] == [2, 4, 6]
        assert said[1]["reporting_ranks"] == list(range(8))
        assert said[1]["metrics"] == {"loss": 1.5}
    assert place.open().at(5).metrics == {"loss": 1.5}


@pytest.mark.rule("B7", "B16")
def test_all_but_rank_0_report_and_nothing_is_committed(shared_place, fleet):
    """Case 1: the error names rank 0, which sits in its seat and says nothing."""
    place, ships = shared_place, fleet(shared_place)
    saved = ships.shard("one", {"a": "a"})
    launch = ships.launch(
        "a",
        [[do("await", "end")]] + [[report(5, path=saved)]] * 7,
        ranks_per_process=4 if place.kind == "s3" else 1,
        barrier_timeout_s=2.0,
    )
    if place.kind == "s3":
        until(lambda: all(len(launch.said(rank)) > 1 for rank in range(1, 8)), "the seven to be told")
        launch.signal("end")
    told = launch.reports(range(1, 8))
    launch.signal("end")
    launch.wait_until_ended()
    for said in told.values():
        assert (said[0]["error"], said[0]["ranks"]) == ("BarrierTimeout", [0])
        assert "rank 0" in said[0]["message"]
    assert place.committed() == []


@pytest.mark.rule("B7", "L18")
def test_ranks_with_nothing_to_save_are_counted_and_a_silent_one_ends_every_wait(local_place, fleet):
    """Case 2: with a deadline of 2 s every waiter ends, and is told of rank 3 alone."""
    ships = fleet(local_place)
    saved = {rank: ships.shard(f"{rank}", {f"{rank}": "x"}) for rank in (0, 2)}
    actions = [
        [report(0, **({"path": saved[rank]} if rank in saved else {})), report(1) if rank < 3 else do("await", "end")]
        for rank in range(4)
    ]
    launch = ships.launch("a", actions, barrier_timeout_s=2.0)
    told = launch.reports(range(3))
    launch.signal("end")
    launch.wait_until_ended()
    for said in told.values():
        assert said[0]["checkpoint"]["ranks"] == [0, 2]
        assert (said[1]["error"], said[1]["ranks"]) == ("BarrierTimeout", [3])
        assert "rank 3" in said[1]["message"] and said[1]["hosts"] != [""]
    assert local_place.committed() == [(1, 0)]


@pytest.mark.rule("B4")
@pytest.mark.parametrize("short", [3, 0])
def test_a_rank_that_returns_early_aborts_the_next_step_at_once(local_place, fleet, short):
    """Case 3: no deadline is waited for, which is an hour; also when the short rank hosts the driver."""
    ships = fleet(local_place)
    actions = [[report(step) for step in ((10, 20) if rank == short else (10, 20, 30))] for rank in range(4)]
    told = ships.run("a", actions, barrier_timeout_s=3600.0)
    for rank in set(range(4)) - {short}:
        last = told[rank][2]
        assert (last["error"], last["reason"], last["ranks"]) == ("StepAborted", "left", [short])
        assert f"rank {short}" in last["message"]
    assert local_place.committed() == [(1, 10), (1, 20)]


@pytest.mark.rule("L13", "N7", "J14")
def test_a_dead_attempts_shard_and_a_late_writer_touch_nothing_of_the_next(shared_place, fleet):
    """Case 4: rank 1 of the first attempt has uploaded, and stands still before its marker."""
    place, ships = shared_place, fleet(shared_place)
    old = [ships.shard(f"old-{rank}", {f"old-{rank}.bin": "old"}) for rank in (0, 1)]
    new = [ships.shard(f"new-{rank}", {f"new-{rank}.bin": "new!"}) for rank in (0, 1)]
    first = ships.launch(
        "a",
        [[say(6, path=old[0]), do("die")], [report(6, path=old[1]), say(7)]],
        hooks={1: [{"call": "put", "key": "^markers/", "do": "stop", "name": "before-its-marker"}]},
    )
    first.wait_until_stopped(1, "before-its-marker")
    first.wait_until_ended([0])
    ships.run("b", [[report(6, path=new[rank])] for rank in (0, 1)])
    prefix = "checkpoints/0000000000000006-000002/"
    store = place.store()
    before = {key: store.read(key) for key in place.keys(prefix)}
    journal = {key: store.read(key) for key in place.keys("journal/")}
    first.go_on(1, "before-its-marker")
    said = first.reports([1])[1]
    assert [(one["error"], one["attempt"], one["live_attempt"]) for one in said] == [("Superseded", 1, 2)] * 2
    assert {key: store.read(key) for key in place.keys(prefix)} == before
    assert {key: store.read(key) for key in place.keys("journal/")} == journal
    found = place.open().at(6)
    assert found.attempt == 2 and found.checkpoint is not None
    assert [file.path for file in found.checkpoint.files()] == ["new-0.bin", "new-1.bin"]
    assert found.checkpoint.verify() == 2


def test_an_unfinished_step_is_not_the_latest_and_its_state_can_be_seen(shared_place, fleet):
    """Case 6."""
    place, ships = shared_place, fleet(shared_place)
    saved = [ships.shard(f"{rank}", {f"{rank}.bin": "x"}) for rank in range(3)]
    launch = ships.launch(
        "a",
        [
            [report(100, path=saved[rank]), *([say(200, path=saved[rank]), do("signal", f"said-{rank}")] * (rank != 1))]
            + [do("await", "end")]
            for rank in range(3)
        ],
        barrier_timeout_s=3600.0,
    )
    for rank in (0, 2):
        launch.wait_for(f"said-{rank}")
    run = place.open()
    latest = run.latest()
    assert latest is not None and latest.step == 100
    assert [manifest.step for manifest in run] == [100]
    status = run.status()
    assert [(one.step, one.reported, list(one.missing)) for one in status.open_steps] == [(200, (0, 2), [1])]
    assert status.open_steps[0].missing[1] != ""
    assert place.keys("checkpoints/0000000000000200-000001/") != []
    for rank in (1, 2):
        launch.kill(rank)  # no farewell, and no deadline
    latest = place.open().latest()
    assert latest is not None and latest.step == 100
    launch.kill(0)


@pytest.mark.rule("B6", "B12")
def test_a_file_cut_short_after_its_marker_is_not_committed_and_an_empty_one_may_be(shared_place, fleet):
    """Case 8: the driver refuses, and names the cut one only; so does `verify` on a committed step."""
    place, ships = shared_place, fleet(shared_place)
    saved = ships.shard("one", {"cut.bin": b"\1" * 1000, "empty.bin": b""})
    actions = [
        [report(0, path=saved), do("signal", "said"), do("await", "cut"), say(1, path=saved), do("signal", "up")]
    ]
    actions[0] += [do("await", "poll"), wait(1)]
    launch = ships.launch("a", actions + [[say(0), do("await", "poll"), say(1), wait(1)]], host_driver=False)
    driver = place.driver()
    until(lambda: driver.poll() and place.committed(), "step 0")
    launch.wait_for("said")
    store = place.store()
    store.put("checkpoints/0000000000000000-000001/cut.bin", b"")
    checkpoint = place.open().at(0).checkpoint
    assert checkpoint is not None
    for level in ("size", "digest"):
        with pytest.raises(tallymark.CheckpointDamaged, match=r"cut\.bin.* 0 bytes instead of 1000") as caught:
            checkpoint.verify(level)
        assert caught.value.paths == ("cut.bin",)
    launch.signal("cut")
    launch.wait_for("up")
    store.put("checkpoints/0000000000000001-000001/cut.bin", b"")
    launch.signal("poll")
    until(lambda: driver.poll() and place.entries(records.Abort), "step 1")
    for said in launch.reports().values():
        assert (said[-1]["reason"], said[-1]["ranks"]) == ("shard-missing", [0])
        assert "cut.bin" in said[-1]["message"] and "empty.bin" not in said[-1]["message"]
    assert place.committed() == [(1, 0)]


def refused_step(place: Place, fleet, cause: str, on_error: str) -> None:
    """Steps 10, 20, 30 of two ranks; the storage refuses rank 1's upload of step 20."""
    ships = fleet(place)
    saved = ships.shard("one", {"shard.bin": "x"})
    actions = [[report(step) for step in (10, 20, 30)]]
    actions += [[action for step in (10, 20, 30) for action in (say(step, path=saved), wait(step))]]
    launch = ships.launch("a", actions, on_error=on_error, barrier_timeout_s=3600.0)
    told = launch.reports()
    for last in (told[0][1], [one for one in told[1] if one["do"] == "wait"][1]):
        if last["error"] == "KeyError":
            assert on_error == "raise"  # it got no report to wait for
            continue
        assert (last["error"], last["reason"], last["ranks"]) == ("StepAborted", "failed", [1])
        assert cause in last["message"]
    said = [one for one in told[1] if one["do"] == "report"]
    warnings = [line for line in launch.log(1) if "could not save" in line]
    if on_error == "warn":
        assert all("error" not in one for one in said)
        assert len(warnings) == 1 and "step 20" in warnings[0] and cause in warnings[0]
    else:
        assert [one.get("error") for one in said] == [None, said[1]["error"], None]
        assert "StoreError" in said[1]["is"] and said[1]["cause"] and cause in said[1]["message"]
    assert place.committed() == [(1, 10), (1, 30)]


@pytest.mark.rule("B2", "B11")
@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_a_folder_that_refuses_one_shard_aborts_that_step_alone(local_place, fleet, on_error):
    """Case 10, L: a file stands where the folder of step 20 should be."""
    place = local_place
    place.store().put("checkpoints/0000000000000020-000001", b"in the way")
    refused_step(place, fleet, "shard.bin", on_error)


@pytest.mark.rule("B2")
@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_a_server_that_refuses_one_shard_aborts_that_step_alone(proxied_place, fleet, proxy, on_error):
    """Case 10, P."""
    proxy.add("PUT", UPLOAD_OF_20, times=None, answer=403)
    refused_step(proxied_place, fleet, "AccessDenied", on_error)


@pytest.mark.rule("G1", "J9", "L5")
def test_drivers_and_openers_that_act_at_once_make_one_manifest(shared_place, fleet, tmp_path):
    """Case 12: two drivers and two would-be openers, 50 times, each time on a run of its own."""
    place = shared_place
    saved = fleet(place).shard("one", {"a.bin": "x"})
    rounds = 50
    go = tmp_path / "go"
    go.mkdir()
    common = {"rounds": rounds, "go": str(go)}
    common |= {"kind": place.kind, "url": place.url, "storage_options": place.storage_options}
    racers = [
        subprocess.Popen([sys.executable, "-W", "error", "-m", racer_script.__name__], stdin=subprocess.PIPE, cwd=ROOT)
        for _ in range(4)
    ]
    outs = [tmp_path / f"racer-{number}.jsonl" for number in range(4)]
    try:
        for number, racer in enumerate(racers):
            role = "driver" if number < 2 else "opener"
            plan = {**common, "number": number, "role": role, "out": str(outs[number])}
            assert racer.stdin is not None
            with racer.stdin as stdin:
                stdin.write(json.dumps(plan).encode())
        for number in range(rounds):
            one = place.below(f"{number}")
            with one.join(host_driver=False) as worker:
                worker.report({"round": number}, saved, step=3)
            (go / str(number)).touch()
        until(lambda: all(racer.poll() is not None for racer in racers), "the racers to end")
        assert [racer.poll() for racer in racers] == [0] * 4
    finally:
        for racer in racers:
            if racer.poll() is None:
                racer.kill()
                racer.wait()
    told = [[json.loads(line) for line in out.read_text().splitlines()] for out in outs]
    for number in range(rounds):
        one = place.below(f"{number}")
        entries = one.entries()
        commits = [entry for entry in entries if isinstance(entry, records.Commit)]
        assert len(commits) == 1 and commits[0].metrics == {"round": number}
        assert {said[number]["manifest"] for said in told} == {records.sha256(records.canonical(commits[0]))}
        attempts = [entry.launch_id for entry in entries if isinstance(entry, records.Attempt)]
        opened = [said[number]["opened"] for said in told[2:]]
        assert len(attempts) == 1 + sum(result is not None for result in opened) >= 2
        assert all(base == 3 for base in opened if base is not None)
        checkpoint = one.open().at(3).checkpoint
        assert checkpoint is not None and checkpoint.verify("size") == 1


@pytest.mark.rule("L6", "J9")
@pytest.mark.parametrize("victim", ["opener", "driver"])
def test_markers_that_are_swept_while_somebody_decides_are_no_riddle(shared_place, fleet, victim):
    """Case 12: between the listing of an opener and its reading of the bodies, another has decided and swept."""
    place, ships = shared_place, fleet(shared_place)
    saved = ships.shard("one", {"a": "a"})
    with place.join(host_driver=False) as worker:
        worker.report({}, saved, step=3)
    hooks = [{"call": "list", "key": "^markers/", "when": "after", "do": "stop", "name": "listed"}]
    if victim == "driver":  # a hosted one, of a rank that joins the live attempt
        with place.join(launch_id="b", world_size=2) as worker:
            launch = ships.launch("b", {1: [report(4)]}, hooks={1: hooks}, world_size=2, host_driver=True)
            launch.wait_until_stopped(1, "listed")
            worker.report({}, step=4)
            launch.go_on(1, "listed")
            assert launch.reports()[1][0]["step"] == 4
        return
    launch = ships.launch("b", [[report(4)]], hooks={0: hooks})
    launch.wait_until_stopped(0, "listed")
    driver = place.driver()
    until(lambda: driver.poll() and not place.keys("markers/"), "the other driver's sweep")
    launch.go_on(0, "listed")
    assert launch.outcomes()[0][0]["base"]["step"] == 3


def test_a_poll_sees_a_marker_that_another_process_has_just_added(s3_place, fleet):
    """Case 16: and the user's own filesystem object keeps its cache, and its settings."""
    place, ships = s3_place, fleet(s3_place)
    mine = s3fs.S3FileSystem(**(place.storage_options or {}), use_listings_cache=True)
    launch = ships.launch("a", [[say(0), do("signal", "one")], [do("await", "two"), say(0)]], host_driver=False)
    launch.wait_for("one")
    path = place.url.removeprefix("s3://")
    listed = mine.ls(f"{path}/markers/000001/{0:016d}")
    settings = (mine.dircache.use_listings_cache, dict(mine.storage_options), mine.retries)
    driver = tallymark.Driver(place.url, store=mine)
    assert len(listed) == 1
    driver.poll()
    poll = driver.poll()
    assert (poll.step, poll.waiting_for) == (0, (1,))
    launch.signal("two")
    launch.reports()
    poll = driver.poll()
    assert place.committed() == [(1, 0)]
    assert [type(entry).__name__ for entry in poll.entries] == ["Commit"]
    assert (mine.dircache.use_listings_cache, dict(mine.storage_options), mine.retries) == settings
    assert mine.ls(f"{path}/markers/000001/{0:016d}") == listed  # out of its own cache, as its owner wished


def test_no_thread_outlives_a_worker(local_place):
    """Nothing is left running once a rank has left."""
    before = set(threading.enumerate())
    with local_place.join() as worker:
        worker.report({}, step=0).wait(60)
    assert set(threading.enumerate()) <= before
    assert Path(local_place.url).exists()
