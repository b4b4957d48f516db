"""What ranks save, where it lies, and what comes back."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.behaviours.fleet import Place, do, report, say, shard
from tests.behaviours.rank import Weights

import tallymark
from tallymark import records


def one_commit(place: Place, source, *, step: int = 0, **more) -> tallymark.Manifest:
    """A world of one in this process reports once."""
    with place.join(**more) as worker:
        return worker.report({"loss": 1.0}, source, step=step).wait(60)


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Each file's bytes and time of change."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_report_leaves_the_users_folder_alone(place, fleet):
    """R6."""
    ships = fleet(place)
    folders = [Path(ships.shard(f"{rank}", {"a/b": "x", ".hidden": "y", "empty": ""})) for rank in (0, 1)]
    before = [tree(folder) for folder in folders]
    ships.run("a", [[report(step, path=str(folder)) for step in range(2)] for folder in folders])
    assert [tree(folder) for folder in folders] == before
    assert place.committed() == [(1, 0), (1, 1)]


def test_every_path_begins_with_the_runs_and_an_adopted_one_keeps_its_own(place, fleet):
    """R7."""
    place = place.as_users_do()
    ships = fleet(place)
    elsewhere = place.beside("elsewhere")
    elsewhere.store().put("deep/data.bin", b"data")
    url = elsewhere.store().url
    saved = ships.shard("one", {"a": "a"})
    told = ships.run("a", [[report(0, path=saved), report(1, at=url)], [report(0), report(1)]])
    run = place.open()
    first, second = run.history()
    assert first.checkpoint is not None and second.checkpoint is not None
    assert first.checkpoint.url.startswith(run.url + "/") and not first.checkpoint.adopted
    assert second.checkpoint.url == url and second.checkpoint.adopted
    assert [one["checkpoint"]["adopted"] for one in told[1]] == [False, True]
    assert [entry.checkpoint.adopted for entry in place.entries(records.Commit)] == [False, True]
    with second.checkpoint.open("deep/data.bin") as stream:
        assert stream.read() == b"data"
    assert second.checkpoint.verify() == 1
    assert elsewhere.keys() == ["deep/data.bin"]


def test_data_in_or_above_the_run_are_not_adopted(place):
    """R7: what we might delete is never taken for somebody else's."""
    place = place.as_users_do()
    store = place.store()
    above = place.url.rpartition("/")[0] if place.kind != "memory" else place.url
    with place.join() as worker:
        for url in (store.url, f"{store.url}/checkpoints", *([above] if place.kind == "local" else [])):
            with pytest.raises(tallymark.InvalidInput, match="in or above the run"):
                worker.report({}, tallymark.Checkpoint.at(url), step=0)
        assert worker.report({}, step=0).wait(60).checkpoint is None


def test_a_missing_folder_is_an_error_at_the_call_and_nothing_is_written(place, tmp_path):
    """R16."""
    with place.join() as worker:
        before = place.keys()
        for missing in (tmp_path / "none", str(tmp_path / "none")):
            with pytest.raises(FileNotFoundError, match="none"):
                worker.report({}, missing, step=0)
        with pytest.raises(FileNotFoundError, match="none"):
            tallymark.Checkpoint.from_directory(tmp_path / "none")
        assert place.keys() == before
        worker.report({}, step=0).wait(60)


def test_relative_paths_and_path_objects_are_understood(place, tmp_path, monkeypatch):
    """R16: of what is saved."""
    shard(tmp_path / "work" / "out", {"a": "a"})
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    with place.join() as worker:
        for step, source in enumerate(("out", "./out/", Path("out"), "../work/./out", "~/work/out")):
            found = worker.report({}, source, step=step).wait(60)
            assert [file.path for file in found.checkpoint.files()] == ["a"]


def test_a_messy_root_is_normalised_once_or_refused(place, tmp_path):
    """R16: of the run. Object stores do not resolve `.` and `..`, and there they are refused before any write."""
    head, _, tail = place.url.rpartition("/")
    messy = [f"{head}/./x/..//{tail}/", f"{head}//./{tail}"]
    place = place.as_users_do()
    clean = replace(place, url=place.url + "/")
    if place.kind == "local":
        one_commit(Place("local", messy[0]), shard(tmp_path / "s", {"a": "a"}))
        assert [Place("local", url).committed() for url in (place.url, *messy)] == [[(1, 0)]] * 3
        assert place.open().url == Place("local", messy[1]).open().url
    else:
        for url in messy:
            with pytest.raises(tallymark.InvalidInput, match="empty, '.' or '..'"):
                replace(place, url=url).join()
        assert place.keys() == []
        one_commit(place, shard(tmp_path / "s", {"a": "a"}))
    assert clean.committed() == [(1, 0)]


def test_a_single_file_lands_as_that_file(place, fleet, tmp_path):
    """R17."""
    ships = fleet(place)
    files = [Path(ships.shard(f"{rank}", {f"model-{rank}.pt": f"{rank}"})) / f"model-{rank}.pt" for rank in (0, 1)]
    ships.run("a", [[report(0, path=str(file))] for file in files])
    checkpoint = place.open().at(0).checkpoint
    assert checkpoint is not None
    folder = checkpoint.download(tmp_path / "down")
    assert {path.name: path.read_text() for path in folder.rglob("*")} == {"model-0.pt": "0", "model-1.pt": "1"}


def test_downloads_go_to_a_given_or_a_temporary_folder_and_local_data_are_opened_in_place(place, tmp_path, monkeypatch):
    """R18."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    checkpoint = one_commit(place, shard(tmp_path / "s", {"a/b": "b", "c": ""})).checkpoint
    assert checkpoint is not None
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "new" / "deep", tmp_path / "empty", str(tmp_path / "text")):
        folder = checkpoint.download(target)
        assert folder == Path(target)
        assert {name: body for name, (body, _) in tree(folder).items()} == {"a/b": b"b", "c": b""}
    with pytest.raises(FileExistsError):
        checkpoint.download(tmp_path / "empty")
    with checkpoint.as_directory() as folder:
        found = {name: body for name, (body, _) in tree(folder).items() if not name.startswith("_tallymark")}
        assert found == {"a/b": b"b", "c": b""}
        in_place = folder.is_relative_to(tmp_path / "run")
        assert in_place == (place.kind == "local")
        assert bool(os.listdir(scratch)) == (not in_place)
    assert folder.exists() == in_place
    assert os.listdir(scratch) == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".tallymark")]


def test_adopted_local_data_are_opened_in_place(tmp_path, place):
    """R18, R7."""
    place = place.as_users_do()
    folder = shard(tmp_path / "data", {"a": "a"})
    found = one_commit(place, tallymark.Checkpoint.at(folder)).checkpoint
    assert found is not None
    with found.as_directory() as opened:
        assert opened == Path(folder)


def test_metadata_are_each_ranks_own(place, fleet):
    """R19: two ranks do not overwrite each other's, and a rank without any has an empty one."""
    ships = fleet(place)
    offers = [{"metadata": {"epoch": 1, "rng": [1, 2]}}, {"metadata": {"epoch": 9}}, {}]
    ships.run(
        "a", [[report(0, path=ships.shard(f"{rank}", {f"{rank}": "x"}), **offer)] for rank, offer in enumerate(offers)]
    )
    checkpoint = place.open().at(0).checkpoint
    assert checkpoint is not None
    assert checkpoint.metadata == {0: {"epoch": 1, "rng": [1, 2]}, 1: {"epoch": 9}, 2: {}}


def test_metadata_are_merged_replaced_and_refused_if_json_cannot_hold_them(place, tmp_path):
    """R19."""
    folder = shard(tmp_path / "s", {"a": "a"})
    checkpoint = tallymark.Checkpoint.from_directory(folder)
    assert checkpoint.metadata == {}
    checkpoint.update_metadata({"a": 1, "b": {"c": 2}})
    checkpoint.update_metadata({"b": 3})
    assert checkpoint.metadata == {"a": 1, "b": 3}
    checkpoint.set_metadata({"z": None})
    assert checkpoint.metadata == {"z": None}
    for bad in ({"x": object()}, {"x": {1, 2}}, {1: 2}, {"x": np.zeros(2)}):
        for call in (checkpoint.update_metadata, checkpoint.set_metadata):
            with pytest.raises(TypeError, match="metadata"):
                call(bad)
        with pytest.raises(TypeError, match="metadata"):
            tallymark.Checkpoint.from_directory(folder, metadata=bad)
    committed = one_commit(place, checkpoint).checkpoint
    assert committed is not None and committed.metadata == {0: {"z": None}}
    with pytest.raises(tallymark.UsageError):
        committed.set_metadata({})


def test_a_rank_that_changes_what_it_was_told_does_not_change_the_record(place, tmp_path):
    """R19: metadata are copied when they are given, not when they are used."""
    metadata = {"list": [1]}
    checkpoint = tallymark.Checkpoint.from_directory(shard(tmp_path / "s", {"a": "a"}), metadata=metadata)
    metadata["list"].append(object())  # type: ignore[arg-type]
    checkpoint.metadata["list"].append("more")
    found = one_commit(place, checkpoint).checkpoint
    assert found is not None and found.metadata == {0: {"list": [1]}}


@pytest.mark.rule("L13", "N7")
def test_shards_of_a_dead_attempt_are_not_merged_into_the_retried_step(place, fleet, tmp_path):
    """D1: a process of the first attempt stands still after its upload has begun, and goes on too late."""
    ships = fleet(place)
    old = ships.shard("old", {"old-1": "1", "old-2": "2"})
    hooks = {1: [{"call": "upload", "key": "old-2$", "do": "stop", "name": "half"}]}
    first = ships.launch(
        "a", [[say(6, path=ships.shard("old-0", {"old-0": "0"})), do("die")], [report(6, path=old)]], hooks=hooks
    )
    first.wait_until_stopped(1, "half")
    first.wait_until_ended([0])
    second = ships.run("b", [[report(6, path=ships.shard(f"new-{r}", {f"new-{r}": "n"}))] for r in (0, 1)])
    assert [said[0]["attempt"] for said in second.values()] == [2, 2]
    before = {key: place.store().read(key) for key in place.keys("checkpoints/0000000000000006-000002/")}
    first.go_on(1, "half")
    late = first.reports([1])[1][0]
    assert late["error"] == "Superseded" and (late["attempt"], late["live_attempt"]) == (1, 2)
    assert {key: place.store().read(key) for key in place.keys("checkpoints/0000000000000006-000002/")} == before
    checkpoint = place.open().at(6).checkpoint
    assert checkpoint is not None
    folder = checkpoint.download(tmp_path / "down")
    assert sorted(path.name for path in folder.iterdir()) == ["new-0", "new-1"]
    assert place.committed() == [(2, 6)]


@pytest.mark.rule("L12", "J14")
def test_a_step_is_decided_once_however_often_it_is_reported(place, fleet, tmp_path):
    """D2: the same again is the same; other words are refused; another attempt has a folder of its own."""
    ships = fleet(place)
    one, other = (ships.shard(name, {"w": name}) for name in ("one", "other"))
    told = ships.run(
        "a", [[report(5, path=one), report(5, path=one), report(5, path=other), report(5), report(4), report(6)]]
    )[0]
    assert told[0] == told[1]
    assert [said["error"] for said in told[2:5]] == ["InvalidInput"] * 3
    assert all("ascend" in said["message"] for said in told[2:5])
    assert place.committed() == [(1, 5), (1, 6)]
    ships.run("b", [[report(5, path=other)]], resume="never")
    first, second = place.entries(records.Commit)[0], place.entries(records.Commit)[-1]
    assert first.checkpoint.path != second.checkpoint.path
    latest = place.open().latest()
    assert latest is not None and (latest.attempt, latest.step) == (2, 5)
    assert latest.checkpoint is not None
    with latest.checkpoint.open("w") as stream:
        assert stream.read() == b"other"
    assert place.store().read(first.checkpoint.path + "w") == b"one"


@pytest.mark.rule("C6", "C7")
def test_odd_metrics_are_encoded_or_refused_on_the_rank_before_any_upload(place, tmp_path):
    """D6."""
    folder = shard(tmp_path / "s", {"a": "a"})
    with place.join() as worker:
        before = place.keys()
        for bad in ({"x": np.zeros(3)}, {"x": object()}, {3: 1}, {"x": {"y": {1}}}):
            with pytest.raises(tallymark.InvalidInput, match="metrics"):
                worker.report(bad, folder, step=0)
        assert place.keys() == before
        found = worker.report({"a": np.float32(0.5), "b": np.int64(3), "c": math.nan}, folder, step=0).wait(60)
    assert (found.metrics["a"], found.metrics["b"]) == (0.5, 3)
    assert math.isnan(found.metrics["c"])
    assert place.committed() == [(1, 0)]


@pytest.mark.rule("N8")
def test_names_that_lead_outside_are_refused_before_any_write(place, tmp_path):
    """D8."""
    place = place.as_users_do()
    elsewhere = place.beside("elsewhere")
    elsewhere.store().put("x", b"x")
    outside = place.beside("outside")
    url = elsewhere.store().url
    folder = tmp_path / "s"
    shard(folder, {"good": "g", "_tallymark/inventory.jsonl.gz": "forged"})
    with place.join() as worker:
        before = place.keys()
        for name in ("../x", "/x", "a/../../x", "a//x", "", "x\0y"):
            with pytest.raises(tallymark.InvalidInput):
                worker.report({}, tallymark.Checkpoint.at(url, files=[name]), step=0)
        with pytest.raises(tallymark.InvalidInput, match="_tallymark"):
            worker.report({}, folder, step=0)
        assert place.keys() == before
        found = worker.report({}, shard(tmp_path / "t", {"..x": "fine"}), step=0).wait(60).checkpoint
        assert found is not None
        for name in ("../x", "/x", "..x/../..x"):
            with pytest.raises(FileNotFoundError, match=r"\.\.x"):
                found.open(name)
    assert outside.keys() == []
    assert elsewhere.keys() == ["x"]


@pytest.mark.rule("B15", "B17")
def test_ranks_files_and_digests_are_recorded(place, fleet):
    """D14: in the manifest and, beside the data, in the inventory."""
    ships = fleet(place)
    bodies = {rank: {f"{rank}/w": f"weights {rank}", "same": "the same"} for rank in (0, 2)}
    ships.run(
        "a",
        [
            [report(0, **({"path": ships.shard(f"{rank}", bodies[rank])} if rank in bodies else {}))]
            for rank in range(3)
        ],
    )
    found = place.open().at(0)
    assert found.checkpoint is not None
    assert (found.reporting_ranks, found.checkpoint.ranks, found.world_size) == ((0, 1, 2), (0, 2), 3)
    facts = {file.path: (file.size, file.digest, file.ranks) for file in found.checkpoint.files()}
    assert facts == {
        path: (len(body), hashlib.sha256(body.encode()).hexdigest(), ranks)
        for path, body, ranks in (
            ("0/w", "weights 0", (0,)),
            ("2/w", "weights 2", (2,)),
            ("same", "the same", (0, 2)),
        )
    }
    assert [file.path for file in found.checkpoint.files(rank=2)] == ["2/w", "same"]
    entry = place.entries(records.Commit)[0]
    assert (entry.checkpoint.files, entry.checkpoint.bytes) == (3, 26)
    prefix = entry.checkpoint.path + "_tallymark/"
    assert place.keys(prefix) == [prefix + "inventory.jsonl.gz", prefix + "manifest.json"]
    assert place.keys("markers/") == []


def test_a_checkpoint_comes_back_as_the_class_it_was_reported_as(place, fleet):
    """D15: the class where it is known, else the generic one with the same kind."""
    ships = fleet(place)
    saved = ships.shard("one", {"a": "a"})
    told = ships.run(
        "a", [[report(0, path=saved, weights=True), report(1, path=saved, kind="unheard-of"), report(2, path=saved)]]
    )[0]
    assert [one["checkpoint"]["class"] for one in told] == ["Weights", "Checkpoint", "Checkpoint"]
    found = [manifest.checkpoint for manifest in place.open()]
    assert [type(one) for one in found] == [Weights, tallymark.Checkpoint, tallymark.Checkpoint]
    assert [one.kind for one in found if one] == ["weights", "unheard-of", "files"]
