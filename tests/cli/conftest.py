"""Runs to look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import shard, two_ranks

import tallymark


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Step 1: both ranks saved; 2: metrics only; 3: open, and rank 1 has not reported."""
    top = tmp_path_factory.mktemp("job")
    run = top / "run"
    driver = tallymark.Driver(run)
    ranks = two_ranks(run)
    for worker in ranks:
        body = bytes([worker.rank]) * 1000
        worker.report(
            {"loss": 0.5, "größe": float("nan")}, shard(top / str(worker.rank), f"{worker.rank}.bin", body), step=1
        )
    for worker in ranks:
        worker.report({"loss": 0.25}, step=2)
    while driver.poll().moved:
        pass
    ranks[0].report({"loss": 0.125}, step=3)
    return run


@pytest.fixture(scope="module")
def aborted(tmp_path_factory) -> Path:
    """Step 1 is committed, step 2 aborted because rank 1 left, and the run finished."""
    run: Path = tmp_path_factory.mktemp("aborted") / "run"
    first, second = two_ranks(run)
    for worker in (first, second):
        worker.report({}, step=1)
    second.leave()
    first.report({}, step=2)
    driver = tallymark.Driver(run)
    while tallymark.open(run).status().open_steps:
        driver.poll()
    first.finish()
    return run
