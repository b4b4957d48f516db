"""Cases from the field about values: who a process is, steps, metrics: 11, 22, 23."""

from __future__ import annotations

import importlib
import json
import math
import struct

import numpy as np
import pytest
from tests.behaviours.fleet import report, shard

import tallymark
from tallymark import records

SRUN = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}
UNKNOWN = {"rank": None, "world_size": None, "launch_id": None}


def bits(value: object) -> object:
    """A value in a form in which equal means equal and typed, NaN and -0.0 too."""
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list):
        return [bits(item) for item in value]
    return (type(value).__name__, struct.pack(">d", value) if isinstance(value, float) else value)


@pytest.mark.rule("L1", "L9")
@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"SLURM_PROCID": "0"}, "IdentityError"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77"}, "IdentityError"),
        ({"SLURM_PROCID": "0", **SRUN}, "RankTaken"),
        ({}, "IdentityError"),
    ],
)
def test_four_processes_that_would_all_be_rank_0_never_commit_as_one(local_place, fleet, environ, error):
    """Case 11: refused where it is no task of srun; else all but one at most find the rank taken."""
    ships = fleet(local_place)
    saved = ships.shard("one", {"a": "a"})
    plans = {number: {"join": dict(UNKNOWN), "meet": []} for number in range(4)}
    launch = ships.launch("", [[report(0, path=saved)]] * 4, plans=plans, environ=dict.fromkeys(range(4), environ))
    refused: list[dict] = []
    for number, process in launch.processes.items():
        if error == "IdentityError":
            process.wait(60)
        else:
            while process.poll() is None and not launch.said(number):
                process.poll()
        refused += [one for one in launch.said(number)[:1] if "error" in one]
    assert len(refused) >= (4 if error == "IdentityError" else 3)
    assert {one["error"] for one in refused} == {error}
    if error == "RankTaken":
        assert all(one["rank"] == 0 and one["pid"] for one in refused)
    for number in launch.processes:
        launch.kill(number)
    assert local_place.committed() == []


@pytest.mark.rule("L2")
@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "2", **SRUN}, ("RANK=", "SLURM_PROCID=")),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "1", **SRUN}, ("WORLD_SIZE=", "SLURM_NTASKS=")),
        ({"RANK": "1", "SLURM_PROCID": "1", **SRUN}, ("RANK=", "WORLD_SIZE")),
        ({"RANK": "4", "WORLD_SIZE": "4"}, ("RANK=", "WORLD_SIZE=")),
    ],
)
def test_contradictions_of_launchers_are_refused_naming_both(local_place, monkeypatch, environ, names):
    """Case 11."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(tallymark.IdentityError) as caught:
        tallymark.join(local_place.url, launch_id="a")
    assert all(name in str(caught.value) for name in names)
    assert local_place.keys() == []


@pytest.mark.rule("L1", "L2")
def test_the_users_word_beats_both_launchers(local_place, monkeypatch):
    """Case 11: the documented one wins."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "2", **SRUN}.items():
        monkeypatch.setenv(name, value)
    with tallymark.join(local_place.url, rank=0, world_size=1, launch_id="a") as worker:
        assert (worker.rank, worker.world_size) == (0, 1)


class Tensor:
    """What a 0-dimensional tensor of a framework looks like."""

    shape = ()

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


def scalars() -> dict[str, tuple[object, object]]:
    """A framework's scalar, and the plain value that it becomes. Torch's own where torch is installed."""
    found: dict[str, tuple[object, object]] = {
        "float64": (np.float64(0.1), 0.1),
        "float32": (np.float32(0.5), 0.5),
        "float16": (np.float16(2), 2.0),
        "int64": (np.int64(2**62), 2**62),
        "uint8": (np.uint8(255), 255),
        "bool": (np.bool_(True), True),
        "0-d": (np.array(1.5), 1.5),
        "nan": (np.float32("nan"), math.nan),
        "str": (np.str_("x"), "x"),
        "tensor": (Tensor(2.5), 2.5),
    }
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return found
    return {**found, "torch": (torch.tensor(2.5), 2.5), "torch-int": (torch.tensor(3), 3)}


@pytest.mark.rule("C2", "C6", "C7")
def test_metrics_come_back_equal_and_typed_and_their_bytes_are_strict_json(local_place, fleet, tmp_path):
    """Case 22."""
    metrics = {
        "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "big": 1e308, "minus zero": -0.0, "2**70": 2**70,
        "-2**70": -(2**70), "2**53+1": 2**53 + 1, "nested": {"a": {"b": [1, 1.0, True, None, "x", math.nan]}},
        "$float": "nan", "$$": {"$int": "5"}, "": "", "ключ": "é", "zero": 0, "float": 1.0, "tiny": 5e-324,
    }  # fmt: skip
    with local_place.join() as worker:
        found = worker.report(metrics, step=0).wait(60)
        assert bits(found.metrics) == bits(metrics)
        typed = worker.report({name: given for name, (given, _) in scalars().items()}, step=1).wait(60)
        assert bits(typed.metrics) == bits({name: plain for name, (_, plain) in scalars().items()})
    assert bits(local_place.open().at(0).metrics) == bits(metrics)

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    store = local_place.store()
    for key in local_place.keys():
        if key.endswith(".json"):
            json.loads((store.read(key) or b"").decode("utf-8"), parse_constant=refuse)
    [process_metrics] = fleet(local_place).run("b", [[report(0, metrics=metrics)]]).values()
    assert bits(process_metrics[0]["metrics"]) == bits(metrics)


@pytest.mark.rule("C7")
@pytest.mark.parametrize(
    ("metrics", "named"),
    [
        ({"bad": np.zeros(3)}, r"metrics\['bad'\].*shape \(3,\)"),
        ({"bad": np.zeros((1,))}, r"metrics\['bad'\].*shape \(1,\)"),
        ({"a": {"b": [0, object()]}}, r"metrics\['a'\]\['b'\]\[1\]"),
        ({7: 1}, "7"),
        ({"a": {None: 1}}, "None"),
        ({"bad": {1, 2}}, r"metrics\['bad'\].*set"),
        ({"bad": b"bytes"}, r"metrics\['bad'\].*bytes"),
        ({"bad": 1j}, r"metrics\['bad'\].*complex"),
        ({"bad": "\ud800"}, r"metrics\['bad'\].*Unicode"),
        ([("a", 1)], "metrics must be a mapping"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name_before_any_upload(local_place, tmp_path, metrics, named):
    """Case 22: and the rank may report the step again, better."""
    saved = shard(tmp_path / "s", {"a": "a"})
    with local_place.join() as worker:
        before = local_place.keys()
        with pytest.raises(tallymark.InvalidInput, match=named):
            worker.report(metrics, saved, step=0)
        assert local_place.keys() == before
        assert worker.report({"good": 1}, saved, step=0).wait(60).metrics == {"good": 1}


@pytest.mark.rule("N1")
def test_steps_are_ordered_as_numbers(local_place, tmp_path):
    """Case 23: the latest is 10**13, in the journal, in listings, and for the next launch."""
    saved = shard(tmp_path / "s", {"a": "a"})
    steps = [8, 9, 10, 99_999_999, 100_000_000, 10**13]
    with local_place.join() as worker:
        for step in steps:
            worker.report({}, saved, step=step).wait(60)
    latest = local_place.open().latest()
    assert latest is not None and latest.step == 10**13
    assert [manifest.step for manifest in local_place.open()] == steps
    folders = dict.fromkeys(key.split("/")[1] for key in local_place.keys("checkpoints/"))
    assert [int(folder.split("-")[0]) for folder in folders] == steps
    with local_place.join(launch_id="b") as worker:
        assert worker.first_step == 10**13 + 1
        worker.report({}, step=10**16 - 1).wait(60)
    assert local_place.entries(records.Commit)[-1].step == 10**16 - 1


def test_a_step_is_an_integer_and_nothing_else(local_place):
    """Case 23: numpy's integers are integers; text, fractions and truth values are not."""
    with local_place.join() as worker:
        before = local_place.keys()
        for bad in ("10", -1, 1.5, 1.0, True, False, 10**16, None, np.float64(3), np.bool_(True), np.array([1])):
            with pytest.raises(tallymark.InvalidInput, match="step"):
                worker.report({}, step=bad)
        assert local_place.keys() == before
        found = worker.report({}, step=np.int64(10)).wait(60)
    assert found.step == 10 and type(found.step) is int
