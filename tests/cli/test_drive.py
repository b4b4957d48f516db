"""`tallymark drive`, as a process: what it tells, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import time

import pytest
from tests.cli.command import start, tally, two_ranks

import tallymark
from tallymark.cli import exits


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_drive_ends_cleanly_while_it_waits_and_another_goes_on(ending, tmp_path):
    first, second = two_ranks(tmp_path)
    first.report({"loss": 1.0}, step=1)
    driver = start("drive", tmp_path)
    assert driver.stderr is not None
    assert driver.stderr.readline() == "tallymark: attempt 1; 0 steps committed and 0 aborted so far\n"
    began = time.monotonic()
    driver.send_signal(ending)
    out, said = driver.communicate(timeout=30)
    assert driver.returncode == 0 and out == "" and ending.name in said and "Traceback" not in said
    assert time.monotonic() - began < 10
    assert not first._done(1)

    other = start("drive", "--json", tmp_path)
    second.report({}, step=1)
    assert other.stdout is not None
    line = json.loads(other.stdout.readline())
    assert (line["kind"], line["step"], line["metrics"]) == ("commit", 1, {"loss": 1.0})
    first.finish()
    out, said = other.communicate(timeout=30)
    assert other.returncode == 0 and said == ""
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["finish"]


def test_drive_names_the_missing_and_tells_what_it_decides(tmp_path):
    first, _ = two_ranks(tmp_path, barrier_timeout_s=7.0)
    first.report({}, step=1)
    driver = start("drive", tmp_path)
    assert driver.stderr is not None
    said = [driver.stderr.readline() for _ in range(3)]
    assert f"step 1 is open, waiting for rank 1 ({socket.gethostname()})" in said[1]
    assert said[2].startswith("tallymark: step 1 aborted: timeout")
    assert f"rank 1 on {socket.gethostname()}" in said[2]
    driver.terminate()
    driver.communicate(timeout=30)
    assert driver.returncode == 0


def test_drive_of_a_finished_run_ends_at_once(aborted):
    done = tally("drive", aborted)
    assert done.returncode == 0 and done.stderr.endswith("tallymark: the run is finished\n")


def test_drive_refuses_a_corrupt_journal(tmp_path):
    with tallymark.join(tmp_path, rank=0, world_size=1, launch_id="a") as worker:
        worker.report({}, step=1).wait()
    slot = tmp_path / "journal/0000000001.json"
    slot.chmod(0o644)
    slot.write_bytes(b"{}")
    assert tally("drive", tmp_path).returncode == exits.RECORDS
