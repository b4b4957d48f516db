"""Launches, one after another and at once: what they resume from, and who may speak."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from tests.behaviours.fleet import do, report, say, shard

import tallymark
from tallymark import layout, records
from tallymark.launch import identify
from tallymark.opening import Wish, open_attempt
from tallymark.store.memory import MemoryStore


@pytest.mark.rule("L8")
def test_ranks_that_disagree_about_the_terms_are_refused(place, fleet):
    """R11: about the world size, the barrier's time-out, or what to resume from."""
    ships = fleet(place)
    others: list[dict[str, Any]] = [
        {}, {"world_size": 3}, {"barrier_timeout_s": 7.0}, {"resume": "never"}, {"world_size": 8},
    ]  # fmt: skip
    plans = {
        number: {"join": {"rank": number, "world_size": 5, "launch_id": "a", "join_timeout_s": 30.0, **other}}
        for number, other in enumerate(others)
    }
    hold = {"meet": [], "actions": [do("await", "end")]}
    launch = ships.launch("a", [[]] * 5, plans={n: {**plan, **hold} for n, plan in plans.items()})
    told = launch.outcomes([1, 2, 3, 4])
    launch.signal("end")
    for number, words in ((1, "world_size=3"), (2, "barrier_timeout_s=7"), (3, "resume='never'"), (4, "world_size=8")):
        said = told[number][0]
        assert (said["do"], said["error"]) == ("join", "InvalidInput")
        assert words in said["message"] and f"rank {number}" in said["message"]
    launch.wait_until_ended()
    assert [layout.parse_member(key).rank for key in place.keys("members/")] == [0, 0]  # type: ignore[union-attr]


@pytest.mark.rule("L10", "L11")
def test_before_the_first_commit_there_is_no_base_and_afterwards_all_ranks_have_the_same(place, fleet):
    """R12: metrics alone are no base."""
    ships = fleet(place)
    saved = ships.shard("one", {"a": "a"})
    launches = [
        [[report(0)], [report(0)]],
        [[report(3, path=saved), report(4)], [report(3), report(4)]],
        [[], []],
    ]
    joined = []
    for number, actions in enumerate(launches):
        told = ships.launch(f"{number}", actions).outcomes()
        assert told[0][0] == told[1][0]
        joined.append(told[0][0])
    assert [(one["first_step"], one["base"] and one["base"]["step"]) for one in joined] == [
        (0, None),
        (0, None),
        (4, 3),
    ]
    assert [entry.base and entry.base.step for entry in place.entries(records.Attempt)] == [None, None, 3]


@pytest.mark.rule("L10", "L11", "J13", "J21")
def test_each_resume_policy_chooses_its_base(place, tmp_path):
    """A rollback leaves later commits out of the lineage; `must` refuses to start from nothing."""
    saved = shard(tmp_path / "s", {"a": "a"})
    with pytest.raises(tallymark.InvalidInput, match="no checkpoint"):
        place.join(resume="must")
    with place.join() as worker:
        for step in (0, 5, 10):
            worker.report({}, saved, step=step).wait(60)
    with pytest.raises(tallymark.InvalidInput, match=r"resume=7.*0, 5, 10"):
        place.join(launch_id="b", resume=7)
    for resume in ("sometimes", 1.5, -1, None):
        with pytest.raises(tallymark.InvalidInput, match="resume|step"):
            place.join(launch_id="b", resume=resume)
    latest = []
    for launch_id, resume, first_step in (("c", 5, 6), ("d", "auto", 6), ("e", "must", 6), ("f", "never", 0)):
        with place.join(launch_id=launch_id, resume=resume) as worker:
            assert worker.first_step == first_step
            found = place.open().latest()
            latest.append(found.step if found else None)
    assert latest == [5, 5, 5, None]
    assert [entry.resume for entry in place.entries(records.Attempt)] == ["auto", 5, "auto", "must", "never"]


def test_the_world_size_changes_from_attempt_to_attempt(place, fleet):
    """R23: 4, then 32, then 7; each resumes from the last commit."""
    ships = fleet(place)
    saved = [ships.shard(f"{rank}", {f"{rank}": "x"}) for rank in range(32)]
    together = 8 if place.kind == "s3" else 4
    for launch, size in enumerate((4, 32, 7)):
        told = ships.launch(
            f"{launch}",
            [[(report if rank == size - 1 else say)(launch, path=saved[rank])] for rank in range(size)],
            ranks_per_process=together if size == 32 else 2,
        ).outcomes()
        bases = {(said[0]["first_step"], said[0]["base"] and said[0]["base"]["world_size"]) for said in told.values()}
        assert bases == {(launch, (None, 4, 32)[launch])}
        assert told[size - 1][1]["checkpoint"]["ranks"] == list(range(size))
    assert place.committed() == [(1, 0), (2, 1), (3, 2)]
    assert [manifest.world_size for manifest in place.open()] == [4, 32, 7]


@pytest.mark.rule("L9", "L15", "L17")
def test_calls_at_the_wrong_time_are_refused_clearly(place, fleet):
    """R24: joining twice, and reporting after leaving. There is nothing to report with before joining."""
    ships = fleet(place)
    actions = [do("join_again"), report(0), do("leave"), do("leave"), say(1), do("finish")]
    told = ships.launch("a", [actions]).outcomes()[0]
    again, first, left, left_again, late, finish = told[1:7]
    assert (again["error"], again["rank"]) == ("RankTaken", 0)
    assert "this process has joined already" in again["message"]
    assert [first.get("error"), left.get("error"), left_again.get("error")] == [None, None, None]
    for said in (late, finish):
        assert said["error"] == "UsageError" and "has left" in said["message"]
    assert "RuntimeError" in late["is"]
    assert not callable(getattr(tallymark, "report", None))
    with pytest.raises(TypeError):
        tallymark.Worker()  # type: ignore[call-arg]


@pytest.mark.rule("L17")
def test_a_forked_child_is_told_at_once_that_it_has_no_seat(shared_place, fleet):
    told = fleet(shared_place).launch("a", [[report(0), do("fork"), report(1)]]).outcomes()[0]
    assert told[2]["child"]["error"] == "UsageError" and "fork" in told[2]["child"]["message"]
    assert "error" not in told[3]
    assert shared_place.committed() == [(1, 0), (1, 1)]


@pytest.mark.rule("L9")
def test_two_processes_that_claim_one_rank_do_not_both_get_it(shared_place, fleet):
    ships = fleet(shared_place)
    plans = {n: {"join": {"rank": 0, "world_size": 1, "launch_id": "a"}, "meet": []} for n in range(2)}
    told = ships.launch("a", [[], []], plans=plans).outcomes()
    refused = [said[0] for said in told.values() if "error" in said[0]]
    assert refused and all(one["error"] == "RankTaken" for one in refused)
    launch = ships.launches[0]
    pids = {process.pid for process in launch.processes.values()}
    for one in refused:
        assert one["host"] and one["pid"] in pids and str(one["pid"]) in one["message"]


@pytest.mark.rule("L4")
def test_a_launch_is_admitted_once(place):
    """While it is live its attempt is used again; afterwards its launch id is spent."""

    def opened(launch_id):
        identity = identify(rank=0, world_size=1, launch_id=launch_id, environ={})
        return open_attempt(place.driver(), Wish(identity, "auto", 5.0)).number

    assert [opened("a"), opened("a"), opened("b")] == [1, 1, 2]
    with pytest.raises(tallymark.Superseded) as caught:
        opened("a")
    assert (caught.value.attempt, caught.value.live_attempt) == (1, 2)
    with pytest.raises(tallymark.Superseded):
        place.join(rank=1, world_size=2, launch_id="a", join_timeout_s=5.0)
    assert len(place.entries(records.Attempt)) == 2


@pytest.mark.rule("L5")
def test_an_opener_that_slept_through_another_launch_overthrows_nobody(place, fleet):
    ships = fleet(place)
    with place.join(launch_id="first"):
        pass
    slot = layout.slot_key(len(place.entries()))
    hooks = {0: [{"call": "create", "key": slot, "do": "stop", "name": "asleep"}]}
    sleeper = ships.launch("sleeper", [[say(0)]], hooks=hooks)
    sleeper.wait_until_stopped(0, "asleep")
    with place.join(launch_id="other") as worker:
        sleeper.go_on(0, "asleep")
        said = sleeper.outcomes()[0]
        assert (said[0]["error"], said[0]["live_attempt"]) == ("Superseded", worker.attempt)
        worker.report({}, step=0).wait(60)
    assert [entry.launch_id for entry in place.entries(records.Attempt)] == ["first", "other"]


@pytest.mark.rule("L7")
def test_other_ranks_wait_for_their_own_launch_only(place, fleet):
    """However new the attempt is that they see; and the wait has an end."""
    with place.join(launch_id="another", world_size=2):
        pass
    join = {"rank": 1, "world_size": 2, "launch_id": "mine", "join_timeout_s": 1.0}
    said = fleet(place).launch("mine", {1: []}, plans={1: {"join": join}}).outcomes()[1]
    assert said[0]["error"] == "JoinTimeout" and "TimeoutError" in said[0]["is"]
    assert "'mine'" in said[0]["message"] and "attempt 1 of another launch" in said[0]["message"]
    assert not [key for key in place.keys("members/") if "/000001." in key]


def test_a_truncated_or_foreign_file_that_may_change_does_not_stop_a_launch(place, tmp_path):
    """D9: of the journal no byte is ever written again; the one file that is may hold anything."""
    saved = shard(tmp_path / "s", {"a": "a"})
    with place.join() as worker:
        worker.report({}, saved, step=0).wait(60)
    store = place.store()
    before = {key: store.read(key) for key in place.keys("journal/")}
    hint = store.read(layout.HINT)
    assert hint
    for number, body in enumerate((b"", hint[:-7], b"\0" * 40, b'{"format":"tallymark.hint/9"}', None)):
        if body is None:
            store.delete([layout.HINT])
        else:
            store.put(layout.HINT, body)
        latest = place.open().latest()
        assert latest is not None and latest.step == number
        with place.join(launch_id=f"after-{number}", resume="must") as worker:
            assert worker.first_step == number + 1
            worker.report({}, saved, step=number + 1).wait(60)
    assert {key: store.read(key) for key in before} == before


@pytest.mark.rule("L6")
def test_a_step_is_not_thrown_away_because_all_ranks_died_right_after_it(place, fleet):
    """D10: the next driver settles it, and the next launch resumes from it."""
    ships = fleet(place)
    saved = [ships.shard(f"{rank}", {f"{rank}": "x"}) for rank in (0, 1)]
    launch = ships.launch("a", [[say(4, path=saved[rank]), do("die")] for rank in (0, 1)], host_driver=False)
    launch.wait_until_ended()
    assert place.committed() == []
    told = ships.launch("b", [[], []]).outcomes()
    assert [(said[0]["first_step"], said[0]["base"]["step"]) for said in told.values()] == [(5, 4)] * 2
    kinds = [type(entry).__name__ for entry in place.entries()]
    assert kinds == ["Genesis", "Attempt", "Commit", "Attempt"]


@pytest.mark.rule("L14")
def test_a_rank_that_waits_drives_when_the_host_of_the_driver_is_dead(shared_place, fleet):
    ships = fleet(shared_place)
    launch = ships.launch(
        "a",
        [[say(0), do("die")], [do("await", "died"), report(0)]],
        host_driver=False,
        drive_after_s=0.2,
    )
    told = launch.reports()
    assert told[1][0]["metrics"] == {"rank": 0, "step": 0}


@pytest.mark.rule("L14")
def test_patience_before_driving_grows_with_the_rank():
    """So that many waiters do not herd: counted on a clock of our own."""
    drives = {}
    for rank in (0, 1, 3):
        store = MemoryStore()
        terms: dict[str, Any] = {"store": store, "world_size": 8, "launch_id": "a", "host_driver": False}
        workers = {number: tallymark.join(None, rank=number, **terms) for number in {0, rank}}
        worker = workers[rank]
        handle = worker.report({}, step=0)
        drives[rank] = _first_poll(worker, handle)
        for one in workers.values():
            one.leave()
    assert 5 <= drives[0] < 7 <= 10 <= drives[1] < 12 <= 15 <= drives[3] < 17


def _first_poll(worker: tallymark.Worker, handle: tallymark.Report) -> float:
    """When, on a clock that only sleeping moves, a waiting rank first drives; without it nobody does."""
    moment, polls = [0.0], []
    real, poll = worker._patience, worker._driver.poll

    def sleep(seconds: float) -> None:
        moment[0] += seconds

    def note() -> tallymark.Poll:
        polls.append(moment[0])
        return poll()

    worker._patience = dataclasses.replace(real, clock=lambda: moment[0], sleep=sleep)
    worker._driver.poll = note  # type: ignore[method-assign]
    with pytest.raises(tallymark.WaitTimeout, match=r"waiting for rank \d \(.+\), rank"):
        handle.wait(40.0)
    worker._patience = real
    return polls[0]


@pytest.mark.rule("L16")
def test_the_host_stays_until_every_open_step_is_decided(place, fleet):
    """Also when it leaves before the others have spoken; by an exception it goes at once."""
    ships = fleet(place)
    told = ships.launch(
        "a",
        [[say(0), do("signal", "leaving"), do("leave")], [do("await", "leaving"), say(0)]],
        barrier_timeout_s=60.0,
    ).outcomes()
    assert all("error" not in said for said in told[0] + told[1])
    assert place.committed() == [(1, 0)]
    launch = ships.launch("b", [[say(1), do("raise")], [do("await", "end")]], barrier_timeout_s=3600.0)
    launch.wait_until_ended([0])
    launch.signal("end")
    launch.wait_until_ended()
    farewells = [
        records.decode(place.store().read(key) or b"", records.Farewell, key)
        for key in place.keys("members/000002/")
        if key.endswith(".left.json")
    ]
    assert {(one.rank, one.last_step) for one in farewells} == {(0, 1), (1, None)}
    assert place.committed() == [(1, 0)]


@pytest.mark.rule("L18")
def test_a_wait_of_ones_own_ends_and_the_step_is_still_open(place):
    with place.join(world_size=2, barrier_timeout_s=3600.0, host_driver=False) as first:
        handle = first.report({}, step=0)
        for seconds in (0, 0.05):
            with pytest.raises(tallymark.WaitTimeout, match="still open"):
                handle.wait(seconds)
        assert not handle.done()
        with place.join(rank=1, world_size=2, barrier_timeout_s=3600.0) as second:
            second.report({}, step=0)
            place.driver().poll()
            assert handle.done()
            assert handle.wait(0).step == 0


@pytest.mark.rule("L13", "L18")
def test_every_call_of_a_superseded_process_says_so(place):
    """A report, a wait, and a wait for a step that had been committed before, which stays committed."""
    old = place.join()
    first = old.report({}, step=0)
    first.wait(60)
    old._host.stop()
    second = old.report({"kept": 0}, step=1)
    with place.join(launch_id="b"):
        assert second.wait(5).metrics == {"kept": 0}  # it was complete, and settled
        with pytest.raises(tallymark.Superseded) as caught:
            old.report({}, step=2)
        assert (caught.value.attempt, caught.value.live_attempt) == (1, 2)
        assert first.wait(5).step == 0
    with pytest.raises(tallymark.Superseded):
        old.report({}, step=3)
    old.leave()
    assert place.committed() == [(1, 0), (1, 1)]


@pytest.mark.rule("B9", "L15")
def test_a_farewell_comes_after_every_word_before_it(place, fleet):
    """The store refuses a marker at first: nothing overtakes it."""
    ships = fleet(place)
    order: list[str] = []
    lock = threading.Lock()
    store = place.store()
    put = store.put
    refuse = [2]

    class Slow:
        def __getattr__(self, name):
            return getattr(store, name)

        def put(self, key, body):
            if key.startswith("markers/") and refuse[0] > 0:
                refuse[0] -= 1
                raise tallymark.StoreError("no", key=key, retryable=False)
            put(key, body)
            with lock:
                order.append(key)

    worker = tallymark.join(None, store=Slow(), rank=0, world_size=1, launch_id="a", host_driver=False, on_error="warn")
    worker.report({}, step=0)
    worker.report({}, step=1)
    worker.leave()
    mine = [key for key in order if key.startswith(("markers/", "members/"))]
    assert [key.split("/")[0] for key in mine] == ["members", "markers", "markers", "members"]
    assert mine[1] < mine[2] and mine[3].endswith(".left.json")
    place.driver().poll()
    assert place.committed() == [(1, 0), (1, 1)]
    assert ships is not None


@pytest.mark.rule("L14")
def test_a_waiter_drives_sooner_when_the_host_has_said_farewell():
    """D5, case 3 with rank 0 as the short one: nobody hosts, and nobody waits for a long silence."""
    store = MemoryStore()
    terms: dict[str, Any] = {"store": store, "world_size": 2, "launch_id": "a"}
    host = tallymark.join(None, rank=0, **terms)
    worker = tallymark.join(None, rank=1, **terms)
    host.leave()
    report = worker.report({}, step=0)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    worker._patience = dataclasses.replace(worker._patience, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(tallymark.StepAborted) as told:
        report.wait()
    assert (told.value.reason, told.value.ranks) == ("left", (0,))
    assert now[0] < 5.0
    worker.leave()
