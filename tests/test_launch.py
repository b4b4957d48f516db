"""Rule L1: identity is explicit, `TALLYMARK_*`, or the launcher's; contradictions are refused, nothing is guessed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tallymark.errors import IdentityError, InvalidInput
from tallymark.launch import TABLE, Identity, identify

pytestmark = pytest.mark.rule("L1", "L2", "L3")

# What each launcher sets, as a process of it sees it (less what does not matter here).
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "3",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
}
SBATCH = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4"}
SALLOC = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4"}
# one torchrun agent per srun task: two tasks, four processes in each
TORCHRUN_IN_SRUN = {
    **SRUN,
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_NPROCS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    **TORCHRUN,
}
BARE = {"RANK": "3", "WORLD_SIZE": "4"}
TALLY = {"TALLYMARK_RANK": "2", "TALLYMARK_WORLD_SIZE": "3", "TALLYMARK_LAUNCH_ID": "job7.r0"}
SLURM_ID = "SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT"


class Index:
    """What a NumPy integer is to us."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def less(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def refused(environ: Mapping[str, str], **arguments: Any) -> str:
    with pytest.raises(IdentityError) as caught:
        identify(environ=environ, **arguments)
    return str(caught.value)


def says(message: str, *parts: str) -> None:
    for part in parts:
        assert part in message, f"{part!r} is not in: {message}"


@pytest.mark.parametrize(
    ("environ", "arguments", "expected"),
    [
        pytest.param(
            {},
            {"rank": 0, "world_size": 1, "launch_id": "a"},
            Identity(0, 1, "a", "argument rank", "argument world_size", "argument launch_id"),
            id="arguments",
        ),
        pytest.param(
            TALLY,
            {},
            Identity(2, 3, "job7.r0", "TALLYMARK_RANK", "TALLYMARK_WORLD_SIZE", "TALLYMARK_LAUNCH_ID"),
            id="tallymark",
        ),
        pytest.param(
            TALLY,
            {"rank": 2, "world_size": 3, "launch_id": "job7.r0"},
            Identity(2, 3, "job7.r0", "argument rank", "argument world_size", "argument launch_id"),
            id="arguments agree with tallymark",
        ),
        pytest.param(
            less(TALLY, "TALLYMARK_RANK", "TALLYMARK_LAUNCH_ID"),
            {"rank": 1, "launch_id": "b"},
            Identity(1, 3, "b", "argument rank", "TALLYMARK_WORLD_SIZE", "argument launch_id"),
            id="an argument and a tallymark variable complete each other",
        ),
        pytest.param(
            TORCHRUN,
            {"launch_id": "run7/start@2+x=1:y-z_A.0"},
            Identity(5, 8, "run7/start@2+x=1:y-z_A.0", "RANK", "WORLD_SIZE", "argument launch_id"),
            id="torchrun",
        ),
        pytest.param(
            less(TORCHRUN, "TORCHELASTIC_RUN_ID") | {"TALLYMARK_LAUNCH_ID": "c"},
            {},
            Identity(5, 8, "c", "RANK", "WORLD_SIZE", "TALLYMARK_LAUNCH_ID"),
            id="RANK and WORLD_SIZE alone",
        ),
        pytest.param(
            TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"},
            {"launch_id": "c-2"},
            Identity(5, 8, "c-2", "RANK", "WORLD_SIZE", "argument launch_id"),
            id="torchrun after a restart, told a launch id",
        ),
        pytest.param(SRUN, {}, Identity(3, 4, "slurm-4711-2-0", "SLURM_PROCID", "SLURM_NTASKS", SLURM_ID), id="srun"),
        pytest.param(
            less(SRUN, "SLURM_NTASKS") | {"SLURM_RESTART_COUNT": "6"},
            {},
            Identity(3, 4, "slurm-4711-2-6", "SLURM_PROCID", "SLURM_NPROCS", SLURM_ID),
            id="srun, requeued, SLURM_NPROCS only",
        ),
        pytest.param(
            TORCHRUN_IN_SRUN,
            {},
            Identity(5, 8, "slurm-4711-2-0", "RANK", "WORLD_SIZE", SLURM_ID),
            id="torchrun in srun: RANK is believed, SLURM_PROCID is its task's",
        ),
        pytest.param(
            less(TORCHRUN_IN_SRUN, "TORCHELASTIC_RESTART_COUNT"),
            {},
            Identity(5, 8, "slurm-4711-2-0", "RANK", "WORLD_SIZE", SLURM_ID),
            id="torchrun in srun, no restart count",
        ),
        pytest.param(
            SBATCH | TORCHRUN | {"TALLYMARK_LAUNCH_ID": "d"},
            {},
            Identity(5, 8, "d", "RANK", "WORLD_SIZE", "TALLYMARK_LAUNCH_ID"),
            id="torchrun in a batch script",
        ),
        pytest.param(
            SRUN | BARE,
            {},
            Identity(3, 4, "slurm-4711-2-0", "RANK", "WORLD_SIZE", SLURM_ID),
            id="RANK agrees with srun",
        ),
        pytest.param(
            SALLOC | {"RANK": "1", "WORLD_SIZE": "2"},
            {"launch_id": "e"},
            Identity(1, 2, "e", "RANK", "WORLD_SIZE", "argument launch_id"),
            id="a shell under salloc has no SLURM_PROCID: the allocation's size is not the launch's",
        ),
        pytest.param(
            SRUN | TORCHRUN | TALLY,
            {},
            Identity(2, 3, "job7.r0", "TALLYMARK_RANK", "TALLYMARK_WORLD_SIZE", "TALLYMARK_LAUNCH_ID"),
            id="the user's word silences the launchers",
        ),
        pytest.param(
            SRUN | {"RANK": "junk", "LOCAL_RANK": "9"},
            {"rank": 0, "world_size": 1},
            Identity(0, 1, "slurm-4711-2-0", "argument rank", "argument world_size", SLURM_ID),
            id="what is not asked is not judged",
        ),
        pytest.param(
            SRUN | {"SLURM_HET_SIZE": "1"},
            {},
            Identity(3, 4, "slurm-4711-2-0", "SLURM_PROCID", "SLURM_NTASKS", SLURM_ID),
            id="one component",
        ),
        pytest.param(
            {},
            {"rank": Index(999_999), "world_size": Index(1_000_000), "launch_id": "x" * 200},
            Identity(999_999, 1_000_000, "x" * 200, "argument rank", "argument world_size", "argument launch_id"),
            id="integers by __index__, the largest world, the longest launch id",
        ),
    ],
)
def test_who_speaks(environ: dict[str, str], arguments: dict[str, Any], expected: Identity) -> None:
    before = dict(environ)
    found = identify(environ=environ, **arguments)
    assert found == expected
    assert type(found.rank) is int
    assert type(found.world_size) is int
    assert environ == before


@pytest.mark.parametrize(
    ("environ", "arguments", "parts"),
    [
        pytest.param({"TALLYMARK_RANK": "2"}, {"rank": 1, "world_size": 3}, ("argument rank=1", "TALLYMARK_RANK=2")),
        pytest.param(TALLY, {"world_size": 4}, ("argument world_size=4", "TALLYMARK_WORLD_SIZE=3")),
        pytest.param(TALLY, {"launch_id": "z"}, ("argument launch_id='z'", "TALLYMARK_LAUNCH_ID='job7.r0'")),
        pytest.param(SRUN | BARE | {"RANK": "2"}, {}, ("RANK=2", "SLURM_PROCID=3", "TALLYMARK_RANK")),
        pytest.param(SRUN | BARE | {"WORLD_SIZE": "8"}, {}, ("WORLD_SIZE=8", "SLURM_NTASKS=4")),
        pytest.param(less(SRUN, "SLURM_NTASKS") | BARE | {"WORLD_SIZE": "8"}, {}, ("WORLD_SIZE=8", "SLURM_NPROCS=4")),
        pytest.param(
            SRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "0", "WORLD_SIZE": "4"},
            {},
            ("WORLD_SIZE=4", "SLURM_NTASKS=1"),
            id="one srun task whose WORLD_SIZE says four",
        ),
        pytest.param(SBATCH | BARE, {}, ("RANK=3", "SLURM_PROCID=0"), id="RANK in a batch script"),
        pytest.param(SRUN | {"SLURM_STEP_NUM_TASKS": "2"}, {}, ("SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=2")),
        pytest.param(SRUN | {"SLURM_NPROCS": "2"}, {}, ("SLURM_NTASKS=4", "SLURM_NPROCS=2")),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "3"}, {}, ("LOCAL_RANK=3", "RANK=1", "node numbers")
        ),
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"},
            {},
            ("LOCAL_WORLD_SIZE=8", "WORLD_SIZE=2", "node numbers"),
        ),
        pytest.param(TORCHRUN | {"LOCAL_RANK": "6"}, {}, ("LOCAL_RANK=6", "RANK=5")),
    ],
)
def test_contradictions_name_both_sides(
    environ: dict[str, str], arguments: dict[str, Any], parts: tuple[str, ...]
) -> None:
    says(refused(environ, **arguments), *parts)
    if "launch_id" not in arguments:
        says(refused(environ, launch_id=environ.get("TALLYMARK_LAUNCH_ID", "given"), **arguments), *parts)


@pytest.mark.parametrize(
    ("environ", "arguments", "parts"),
    [
        ({}, {}, ("TALLYMARK_RANK", "TALLYMARK_WORLD_SIZE", "rank=")),
        ({}, {"rank": 2}, ("argument rank=2", "world_size", "TALLYMARK_WORLD_SIZE")),
        ({}, {"world_size": 2}, ("argument world_size=2", "TALLYMARK_RANK")),
        ({"TALLYMARK_RANK": "7"}, {}, ("TALLYMARK_RANK=7", "TALLYMARK_WORLD_SIZE")),
        ({"TALLYMARK_WORLD_SIZE": "7"}, {}, ("TALLYMARK_WORLD_SIZE=7", "TALLYMARK_RANK")),
        (TORCHRUN, {"rank": 2}, ("argument rank=2", "world size (argument or TALLYMARK_WORLD_SIZE) not set")),
        (SRUN | {"TALLYMARK_WORLD_SIZE": "4"}, {}, ("TALLYMARK_WORLD_SIZE=4", "rank (argument or TALLYMARK_RANK)")),
        ({"RANK": "3"}, {}, ("WORLD_SIZE not set", "RANK=3")),
        ({"WORLD_SIZE": "4"}, {}, ("RANK not set", "WORLD_SIZE=4")),
        (SRUN | {"RANK": "3"}, {}, ("WORLD_SIZE not set", "RANK=3")),
        (SRUN | {"WORLD_SIZE": "4"}, {}, ("RANK not set", "WORLD_SIZE=4")),
        (SRUN | {"TORCHELASTIC_RUN_ID": "j"}, {}, ("RANK and WORLD_SIZE not set",)),
        (less(SRUN, "SLURM_PROCID"), {}, ("SLURM_PROCID not set", "SLURM_NTASKS=4")),
        (
            less(SRUN, "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
            {},
            ("SLURM_NTASKS not set", "SLURM_PROCID=3"),
        ),
        (SBATCH, {}, ("SLURM_PROCID='0'", "SLURM_STEP_ID not set", "srun", "TALLYMARK_RANK")),
        (SALLOC, {}, ("SLURM_STEP_ID not set", "srun")),
        ({"SLURM_PROCID": "0"}, {}, ("SLURM_PROCID='0'", "SLURM_JOB_ID and SLURM_STEP_ID not set")),
        ({"SLURM_CONF": "/etc/slurm.conf"}, {}, ("nor a launcher's variables", "TALLYMARK_RANK")),
        (SRUN | {"SLURM_STEP_ID": "4294967291"}, {}, ("SLURM_STEP_ID=4294967291", "srun")),
        (SRUN | {"SLURM_HET_SIZE": "2"}, {}, ("SLURM_HET_SIZE=2", "TALLYMARK_RANK")),
    ],
)
def test_missing_halves_are_named_and_never_guessed(
    environ: dict[str, str], arguments: dict[str, Any], parts: tuple[str, ...]
) -> None:
    says(refused(environ, launch_id="given", **arguments), *parts)


@pytest.mark.parametrize(
    ("environ", "arguments", "parts"),
    [
        (TORCHRUN, {}, ("TORCHELASTIC_RUN_ID='none'",)),
        (SBATCH | TORCHRUN, {}, ("TORCHELASTIC_RUN_ID='none'",)),
        (TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}, {}, ("TORCHELASTIC_RESTART_COUNT='1'",)),
        (TORCHRUN_IN_SRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}, {}, ("TORCHELASTIC_RESTART_COUNT='1'",)),
        (TORCHRUN_IN_SRUN | {"TORCHELASTIC_RESTART_COUNT": ""}, {}, ("TORCHELASTIC_RESTART_COUNT=''",)),
        (SRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}, {"rank": 0, "world_size": 1}, ("TORCHELASTIC_RESTART_COUNT='2'",)),
        (BARE, {}, ("nor a launcher's variables",)),
        ({}, {"rank": 0, "world_size": 1}, ("nor a launcher's variables",)),
        (SBATCH, {"rank": 0, "world_size": 1}, ("SLURM_STEP_ID not set",)),
        (SRUN | {"SLURM_HET_SIZE": "3"}, {"rank": 0, "world_size": 1}, ("SLURM_HET_SIZE=3",)),
    ],
)
def test_without_a_launch_id_the_error_shows_how_to_make_one(
    environ: dict[str, str], arguments: dict[str, Any], parts: tuple[str, ...]
) -> None:
    message = refused(environ, **arguments)
    says(message, *parts, "TALLYMARK_LAUNCH_ID", 'launch_id="', "same on all ranks", "never reused", "restart count")


@pytest.mark.parametrize("value", [True, False, 1.0, "1", b"1", None, [1], float("nan"), 1j])
@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_arguments_that_are_no_integers_are_refused(name: str, value: object) -> None:
    message = refused({}, **({"rank": 0, "world_size": 2, "launch_id": "a"} | {name: value}))
    if value is None:
        says(message, name.replace("_", " "), "not set")
    else:
        says(message, f"argument {name}={value!r}", type(value).__name__, "integer")


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1\n", "+1", "-1", "1.0", "1_0", "0x1", "\u0661", "\u00b2", "one", "9" * 21]
)
@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (TALLY, "TALLYMARK_RANK"),
        (TALLY, "TALLYMARK_WORLD_SIZE"),
        (TORCHRUN, "RANK"),
        (TORCHRUN, "WORLD_SIZE"),
        (TORCHRUN, "LOCAL_RANK"),
        (TORCHRUN, "LOCAL_WORLD_SIZE"),
        (SRUN | BARE, "SLURM_PROCID"),
        (SRUN, "SLURM_PROCID"),
        (SRUN, "SLURM_NTASKS"),
        (SRUN, "SLURM_NPROCS"),
        (SRUN, "SLURM_STEP_NUM_TASKS"),
        (SRUN, "SLURM_JOB_ID"),
        (SRUN, "SLURM_STEP_ID"),
        (SRUN, "SLURM_HET_SIZE"),
        (SRUN, "SLURM_RESTART_COUNT"),
    ],
)
def test_variables_are_plain_decimals(environ: dict[str, str], name: str, text: str) -> None:
    says(refused(environ | {name: text}), f"{name}={text!r} is not a plain decimal number")


@pytest.mark.parametrize(
    ("rank", "world_size", "parts"),
    [
        (3, 3, ("rank=3", "world_size=3")),
        (-1, 3, ("rank=-1", "world_size=3")),
        (0, 0, ("world_size=0", "1 to 1000000")),
        (0, -4, ("world_size=-4",)),
        (0, 1_000_001, ("world_size=1000001", "1000000")),
        pytest.param(10**5000, 2, ("argument rank=<an integer of", "world_size=2"), id="huge rank"),
        pytest.param(0, 10**5000, ("argument world_size=<an integer of",), id="huge world"),
    ],
)
def test_ranges(rank: int, world_size: int, parts: tuple[str, ...]) -> None:
    says(refused({}, rank=rank, world_size=world_size, launch_id="a"), *parts)


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        (TALLY | {"TALLYMARK_RANK": "3"}, ("TALLYMARK_RANK=3", "TALLYMARK_WORLD_SIZE=3")),
        (TALLY | {"TALLYMARK_WORLD_SIZE": "0"}, ("TALLYMARK_WORLD_SIZE=0",)),
        (TORCHRUN | {"RANK": "8"}, ("RANK=8", "WORLD_SIZE=8")),
        (SRUN | {"SLURM_PROCID": "4"}, ("SLURM_PROCID=4", "SLURM_NTASKS=4")),
    ],
)
def test_ranges_of_variables(environ: dict[str, str], parts: tuple[str, ...]) -> None:
    says(refused(environ), *parts)


@pytest.mark.parametrize(
    "value", ["", " ", "a b", "a\n", "a\0", "é", "a\\b", "a'b", "a*", "a{}", "\ud800", "x" * 201, 7, b"a", True]
)
def test_launch_ids_that_are_refused(value: Any) -> None:
    shown = "(201 characters)" if value == "x" * 201 else f"={value!r}"
    says(refused({}, rank=0, world_size=1, launch_id=value), "argument launch_id=", shown, "200")
    if isinstance(value, str):
        message = refused({"TALLYMARK_LAUNCH_ID": value}, rank=0, world_size=1)
        says(message, "TALLYMARK_LAUNCH_ID=", shown)
        # ... also behind a good argument
        says(refused({"TALLYMARK_LAUNCH_ID": value}, rank=0, world_size=1, launch_id="a"), "TALLYMARK_LAUNCH_ID=")


def test_four_processes_in_one_batch_script_do_not_all_become_rank_0() -> None:
    """Case 11, Lightning#11406: SLURM_PROCID is 0 for each of them, and there is no RANK."""
    for local in range(4):
        says(refused(SBATCH | {"LOCAL_RANK": str(local)}, launch_id="a"), "SLURM_PROCID='0'", "SLURM_STEP_ID not set")


def test_four_processes_in_one_srun_task_claim_the_same_seat() -> None:
    """Case 11: nothing here tells them apart; with one launch id they meet at the seat of rank 0, and one gets it."""
    found = {identify(environ=SRUN | {"SLURM_PROCID": "0", "LOCAL_RANK": str(local)}) for local in range(4)}
    assert {(one.rank, one.launch_id) for one in found} == {(0, "slurm-4711-2-0")}


def test_a_requeued_job_and_another_step_are_other_launches() -> None:
    again = {"SLURM_RESTART_COUNT": "1"}, {"SLURM_RESTART_COUNT": "2"}, {"SLURM_STEP_ID": "3"}, {"SLURM_JOB_ID": "8"}
    ids = {identify(environ=SRUN | other).launch_id for other in ({}, *again)}
    assert len(ids) == 5


def test_identity_is_frozen_and_slotted() -> None:
    found = identify(environ=SRUN)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.rank = 1  # type: ignore[misc]
    assert not hasattr(found, "__dict__")
    assert issubclass(IdentityError, InvalidInput)


def test_numpy_integers() -> None:
    numpy = pytest.importorskip("numpy")
    found = identify(rank=numpy.int64(1), world_size=numpy.uint8(2), launch_id="a", environ={})
    assert (found.rank, found.world_size, type(found.rank)) == (1, 2, int)
    says(refused({}, rank=numpy.bool_(True), world_size=2, launch_id="a"), "argument rank=")
    says(refused({}, rank=numpy.float32(1), world_size=2, launch_id="a"), "argument rank=")


@pytest.mark.parametrize(
    ("call", "source"),
    [
        ("identify(environ=os.environ)", "TALLYMARK_RANK"),
        ("identify(rank=int(sys.argv[1]), world_size=2, launch_id='x', environ=os.environ)", "argument rank"),
    ],
)
def test_real_processes(call: str, source: str) -> None:
    """The rows marked "run here": what a shell passes is what a process finds."""
    code = f"import os, sys; from tallymark.launch import identify; print({call})"
    for rank in range(2):
        said = {"TALLYMARK_RANK": str(rank), "TALLYMARK_WORLD_SIZE": "2", "TALLYMARK_LAUNCH_ID": "x"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(rank)],
            env={**os.environ, **said, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith(f"Identity(rank={rank}, world_size=2, launch_id='x', rank_from={source!r}")


def test_the_published_table_is_the_code_s() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "identity.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| {', '.join(f'`{name}`' for name in row.variables)} | {row.gives} | {row.precedence} "
        f"| {row.contradicts} | {row.evidence} |"
        for row in TABLE
    ]
    assert {row.evidence for row in TABLE} <= {"run here", "fixture-tested"}
    assert [row.precedence for row in TABLE] == sorted(row.precedence for row in TABLE)
