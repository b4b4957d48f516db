"""When a step is committed, by whom, and what is kept of it."""

from __future__ import annotations

import itertools

import pytest
from tests.behaviours.fleet import Action, do, report, say, wait

from tallymark import records

SUBSETS = [ranks for size in range(5) for ranks in itertools.combinations(range(4), size)]


@pytest.mark.rule("B6", "B16")
def test_ten_ranks_one_with_a_checkpoint_in_any_order_of_arrival_make_one_commit(place, fleet):
    """R1."""
    ships = fleet(place)
    shard = ships.shard("one", {"weights.bin": "w"})
    orders = [range(10), range(9, -1, -1), (4, 0, 9, 2, 7, 1, 8, 3, 6, 5)]
    savers = (0, 9, 4)
    actions: list[list[Action]] = [[] for _ in range(10)]
    for step, (order, saver) in enumerate(zip(orders, savers, strict=True)):
        for before, rank in zip((None, *order), order, strict=False):
            if before is not None:
                actions[rank].append(do("await", f"{step}-{before}"))
            actions[rank].append(say(step, path=shard) if rank == saver else say(step))
            actions[rank].append(do("signal", f"{step}-{rank}"))
    for rank in range(10):
        actions[rank].extend(wait(step) for step in range(3))
    told = ships.run("a", actions, ranks_per_process=2 if place.kind == "s3" else 1)
    assert place.committed() == [(1, 0), (1, 1), (1, 2)]
    for rank in range(10):
        waited = [one for one in told[rank] if one["do"] == "wait"]
        assert [one["checkpoint"]["ranks"] for one in waited] == [[saver] for saver in savers]
        assert waited == [one for one in told[0] if one["do"] == "wait"]


@pytest.mark.rule("B16")
def test_a_step_without_any_checkpoint_keeps_its_metrics_and_the_latest_checkpoint_stays(place, fleet):
    """R2, D11."""
    ships = fleet(place)
    shard = ships.shard("one", {"a": "a"})
    told = ships.run("a", [[report(0, path=shard), report(1, metrics={"loss": 0.5})], [report(0), report(1)]])
    assert [one["checkpoint"] for one in (told[0][1], told[1][1])] == [None, None]
    run = place.open()
    assert (run.at(1).metrics, run.at(1).checkpoint) == ({"loss": 0.5}, None)
    latest = run.latest()
    assert latest is not None and latest.step == 0
    assert [manifest.step for manifest in run] == [0, 1]


@pytest.mark.rule("B7", "L18")
def test_one_silent_rank_and_nothing_is_committed(place, fleet):
    """R3: the third has taken its seat, and says nothing."""
    ships = fleet(place)
    launch = ships.launch("a", [[report(0)], [report(0)], [do("await", "end")]], barrier_timeout_s=1.0)
    told = launch.reports([0, 1])
    launch.signal("end")
    for rank in (0, 1):
        assert told[rank][0]["error"] == "BarrierTimeout"
        assert "TimeoutError" in told[rank][0]["is"]
        assert told[rank][0]["ranks"] == [2]
    assert told[0][0] == told[1][0]
    assert told[0][0]["hosts"] == [entry.culprits[0].host for entry in place.entries(records.Abort)] != [""]
    launch.wait_until_ended()
    assert place.committed() == []


@pytest.mark.rule("B6", "B16")
def test_any_of_the_sixteen_subsets_of_four_ranks_may_save(every_place, fleet, tmp_path):
    """R4: the same metrics and path whoever saves, and contributing ranks and files exactly."""
    place, ships = every_place, fleet(every_place)
    actions = []
    for rank in range(4):
        shard = ships.shard(f"{rank}", {f"rank{rank}.bin": f"weights of {rank}", f"{rank}/deep": f"{rank}"})
        offers = [{"path": shard} if rank in ranks else {} for ranks in SUBSETS]
        actions.append([say(step, **offer) for step, offer in enumerate(offers)])
        actions[-1] += [wait(step) for step in range(16)]
    told = ships.run("a", actions)
    run = place.open()
    history = run.history()
    assert [manifest.step for manifest in history] == list(range(16))
    for manifest, ranks in zip(history, SUBSETS, strict=True):
        step = manifest.step
        assert manifest.metrics == {"rank": 0, "step": step}
        assert manifest.reporting_ranks == (0, 1, 2, 3)
        waited = [[one for one in told[rank] if one["do"] == "wait"][step] for rank in range(4)]
        assert all(one == waited[0] for one in waited)
        if not ranks:
            assert manifest.checkpoint is None is waited[0]["checkpoint"]
            continue
        checkpoint = manifest.checkpoint
        assert checkpoint.ranks == ranks == tuple(waited[0]["checkpoint"]["ranks"])
        assert checkpoint.url == f"{run.url}/checkpoints/{step:016d}-000001"
        folder = checkpoint.download(tmp_path / f"step-{step}")
        found = {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}
        assert found == {
            name: body
            for rank in ranks
            for name, body in ((f"rank{rank}.bin", f"weights of {rank}"), (f"{rank}/deep", f"{rank}"))
        }
        assert {file.path: file.ranks for file in checkpoint.files()} == {
            name: (rank,) for rank in ranks for name in (f"rank{rank}.bin", f"{rank}/deep")
        }


def test_two_of_four_ranks_save_and_a_download_holds_both_shards_and_nothing_else(place, fleet, tmp_path):
    """R5."""
    ships = fleet(place)
    offers = {rank: {"path": ships.shard(f"{rank}", {f"shard-{rank}": f"{rank}"})} for rank in (1, 3)}
    ships.run("a", [[report(7, **offers.get(rank, {}))] for rank in range(4)])
    latest = place.open().latest()
    assert latest is not None and latest.checkpoint is not None
    folder = latest.checkpoint.download(tmp_path / "down")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"shard-1": "1", "shard-3": "3"}


@pytest.mark.rule("L14", "L18", "B7")
def test_a_rank_dies_before_the_barrier_and_the_next_attempt_commits_the_step_once(place, fleet):
    """R9: survivors do not hang."""
    ships = fleet(place)
    shard = ships.shard("one", {"a": "a"})
    first = ships.launch("a", [[report(0, path=shard)], [do("die")], [report(0)]], barrier_timeout_s=1.0)
    told = first.reports()
    assert [told[rank][0]["error"] for rank in (0, 2)] == ["BarrierTimeout"] * 2
    assert [told[rank][0]["ranks"] for rank in (0, 2)] == [[1], [1]]
    told = ships.run("b", [[report(0, path=shard)], [report(0)], [report(0)]], barrier_timeout_s=1.0)
    assert [told[rank][0]["attempt"] for rank in range(3)] == [2, 2, 2]
    assert place.committed() == [(2, 0)]


@pytest.mark.rule("B7")
def test_nine_of_ten_arrive_and_the_error_names_the_tenth(place, fleet):
    """R10: it never started."""
    ships = fleet(place)
    told = ships.run(
        "a",
        {rank: [report(3)] for rank in range(10) if rank != 7},
        world_size=10,
        barrier_timeout_s=2.0,
        ranks_per_process=3 if place.kind == "s3" else 1,
    )
    assert {one["error"] for said in told.values() for one in said} == {"BarrierTimeout"}
    assert [one["ranks"] for said in told.values() for one in said] == [[7]] * 9
    assert "rank 7" in told[0][0]["message"] and "never took its seat" in told[0][0]["message"]


@pytest.mark.rule("B16")
def test_different_ranks_save_at_different_steps(place, fleet):
    """D3: any set at any step, and the folder of a committed step gets nothing more."""
    ships = fleet(place)
    savers = [(0,), (1,), (0, 1), (), (1,)]
    shards = [ships.shard(f"{rank}", {f"{rank}.bin": f"{rank}"}) for rank in (0, 1)]
    ships.run(
        "a",
        [
            [report(10 * n, **({"path": shards[rank]} if rank in ranks else {})) for n, ranks in enumerate(savers)]
            for rank in (0, 1)
        ],
    )
    run = place.open()
    assert [manifest.checkpoint.ranks if manifest.checkpoint else () for manifest in run] == savers
    for manifest in run:
        if manifest.checkpoint:
            files = {file.path for file in manifest.checkpoint.files()}
            prefix = f"checkpoints/{manifest.step:016d}-000001/"
            there = {key.removeprefix(prefix) for key in place.keys(prefix)}
            assert files == {f"{rank}.bin" for rank in manifest.checkpoint.ranks}
            assert {key for key in there if not key.startswith("_tallymark/")} == files


@pytest.mark.rule("B5")
def test_ranks_that_name_different_folders_abort_the_step_with_ranks_and_paths(place, fleet):
    """D4."""
    ships = fleet(place)
    places = [place.beside(name) for name in ("left", "right")]
    for one in places:
        one.store().put("data.bin", b"data")
    urls = [one.store().url for one in places]
    told = ships.run("a", [[report(0, at=urls[0])], [report(0)], [report(0, at=urls[1])]])
    for rank in range(3):
        said = told[rank][0]
        assert said["error"] == "StepAborted", said
        assert (said["reason"], said["ranks"]) == ("path-mismatch", [0, 2])
        assert all(url in said["message"] for url in urls)
        assert "rank 0" in said["message"] and "rank 2" in said["message"]
    assert place.committed() == []


@pytest.mark.rule("B5")
def test_ranks_that_name_different_kinds_abort_the_step(place, fleet):
    """D4, for the kind."""
    ships = fleet(place)
    shards = [ships.shard(f"{rank}", {f"{rank}": "x"}) for rank in (0, 1)]
    told = ships.run("a", [[report(0, path=shards[0], kind="torch")], [report(0, path=shards[1], kind="jax")]])
    assert told[0][0]["reason"] == told[1][0]["reason"] == "path-mismatch"
    assert "torch" in told[0][0]["message"] and "jax" in told[0][0]["message"]


@pytest.mark.rule("B3", "B4", "L15")
@pytest.mark.parametrize("short", [0, 1])
def test_uneven_numbers_of_reports_are_seen_at_once(place, fleet, short):
    """D5: by a later report of the rank, or by its farewell; no deadline is waited for (it is an hour)."""
    ships = fleet(place)
    actions = {
        short: [report(0), say(2), do("await", "told")],
        1 - short: [report(0), report(1), do("signal", "told"), say(2), report(3)],
    }
    told = ships.run("a", actions, world_size=2, barrier_timeout_s=3600.0)
    skipped, left = told[1 - short][1], told[1 - short][3]
    assert (skipped["error"], skipped["reason"], skipped["ranks"]) == ("StepAborted", "skipped", [short])
    assert (left["error"], left["reason"], left["ranks"]) == ("StepAborted", "left", [short])
    assert place.committed() == [(1, 0), (1, 2)]


@pytest.mark.rule("L18")
def test_right_after_a_report_all_ranks_agree_about_the_latest_checkpoint(place, fleet):
    """D12."""
    ships = fleet(place)
    shards = [ships.shard(f"{rank}", {f"{rank}": "x"}) for rank in range(3)]
    actions = []
    for rank in range(3):
        mine: list[Action] = []
        for step in range(4):
            mine += [report(step, **({"path": shards[rank]} if step % 3 == rank else {})), do("latest")]
            mine += [do("signal", f"{rank}-{step}"), *(do("await", f"{other}-{step}") for other in range(3))]
        actions.append(mine)
    told = ships.launch("a", actions).outcomes()
    seen = {rank: [one["latest"] for one in told[rank] if one["do"] == "latest"] for rank in range(3)}
    assert seen[0] == seen[1] == seen[2]
    assert [latest["step"] for latest in seen[0]] == [0, 1, 2, 3]


def test_many_steps_that_are_ready_are_committed_by_one_poll(place, fleet):
    """D13: nothing is rationed to one report in some seconds; a poll decides all that can be decided."""
    ships = fleet(place)
    ships.run("a", [[say(step) for step in range(20)]] * 2, host_driver=False)
    driver = place.driver()
    driver.poll()
    assert place.committed() == [(1, step) for step in range(20)]
