"""Each command that reads, as a process: what it prints, its JSON, its exit code."""

from __future__ import annotations

import json
import re
import socket

import pytest
from tests.cli.command import document, shard, start, tally

import tallymark
from tallymark import errors
from tallymark.cli import exits

# ------------------------------------------------------------------------------------- reading


def test_ls(place):
    done = tally("ls", place)
    assert done.returncode == 0 and done.stderr == ""
    header, one, two = done.stdout.splitlines()
    assert header.split() == ["step", "attempt", "slot", "ranks", "files", "bytes", "metrics", "time", "(UTC)"]
    assert one.split()[:7] == ["1", "1", "2", "0-1", "2", "2.0", "KiB"] and "loss=0.5" in one and "größe=nan" in one
    assert two.split()[:6] == ["2", "1", "3", "-", "-", "-"]
    found = document("ls", place)
    assert [step["step"] for step in found["steps"]] == [1, 2]
    assert found["steps"][0]["metrics"] == {"loss": 0.5, "größe": {"$float": "nan"}}
    assert found["steps"][0]["ranks"] == [[0, 1]] and found["steps"][1]["ranks"] == []


def test_ls_all_says_what_was_aborted_and_why(aborted):
    done = tally("ls", "--all", aborted)
    assert done.returncode == 0
    assert re.search(r"step 2 aborted: left.*rank 1 on " + socket.gethostname(), done.stdout)
    entries = document("ls", "--all", aborted)["entries"]
    assert [entry["kind"] for entry in entries] == ["genesis", "attempt", "commit", "abort", "finish"]
    assert entries[2]["in_lineage"] and entries[3]["reason"] == "left"
    assert entries[3]["culprits"][0]["rank"] == 1 and entries[3]["culprits"][0]["host"] == socket.gethostname()


def test_show(place):
    done = tally("show", place)
    assert done.returncode == 0
    assert re.search(r"step +1 \(attempt 1, slot 2\)", done.stdout) and re.search(r"1\.bin +1000 B", done.stdout)
    found = document("show", place, "1")
    assert [file["path"] for file in found["checkpoint"]["files"]] == ["0.bin", "1.bin"]
    assert len(found["checkpoint"]["files"][0]["digest"]) == 64
    assert document("show", place, "2")["checkpoint"] is None


def test_a_step_may_stand_behind_an_option(place):
    assert json.loads(tally("show", place, "--json", "2").stdout)["step"] == 2


def test_show_says_what_became_of_a_step(place, aborted):
    gone = tally("show", aborted, "2")
    assert gone.returncode == exits.NOT_THERE and "step 2 was aborted in attempt 1: left" in gone.stderr
    never = tally("show", place, "77")
    assert never.returncode == exits.NOT_THERE and "the newest committed steps are: 1, 2" in never.stderr


def test_status_names_the_missing_rank_and_its_host(place):
    done = tally("status", place)
    assert done.returncode == 0
    assert "step 3 is open; reported: ranks 0; missing: 1" in done.stdout
    assert f"rank 1 on {socket.gethostname()}" in done.stdout
    found = document("status", place)
    missing = [{"rank": 1, "host": socket.gethostname()}]
    assert found["open_steps"] == [{"step": 3, "reported": [[0, 0]], "missing": missing}]
    assert found["latest"]["step"] == 1 and found["latest_report"]["step"] == 2 and found["base"] is None


def test_status_of_a_finished_run(aborted):
    assert "finished (completed)" in tally("status", aborted).stdout
    assert document("status", aborted)["finished"] == "completed"


def test_verify(place):
    done = tally("verify", place)
    assert done.returncode == 0 and "step 1, 2 files, 2.0 KiB: all as committed, by digest" in done.stdout
    assert "metrics only" in tally("verify", place, "2").stdout
    found = document("verify", "--all", "--level", "size", place)
    assert found["ok"] and [step["files"] for step in found["steps"]] == [2, 0]


def test_verify_names_what_is_damaged(tmp_path):
    with tallymark.join(tmp_path / "run", rank=0, world_size=1, launch_id="a") as worker:
        worker.report({}, shard(tmp_path / "data", "weights.bin", b"right"), step=1).wait()
    [file] = (tmp_path / "run/checkpoints").rglob("weights.bin")
    file.chmod(0o644)
    file.write_bytes(b"wrong")
    assert tally("verify", "--level", "size", tmp_path / "run").returncode == 0
    done = tally("verify", tmp_path / "run")
    assert done.returncode == exits.DAMAGED and "weights.bin" in done.stdout
    done = tally("verify", "--json", tmp_path / "run")
    assert done.returncode == exits.DAMAGED
    found = json.loads(done.stdout)
    assert not found["ok"] and found["steps"][0]["damaged"] == ["weights.bin"]


# ------------------------------------------------------------------------------------- exit codes and errors


@pytest.mark.parametrize("command", ["ls", "show", "status", "verify"])
def test_no_run_there(command, tmp_path):
    done = tally(command, tmp_path / "nothing")
    assert done.returncode == exits.NOT_THERE and done.stdout == ""
    assert done.stderr == f"tallymark: there is no run at {tmp_path / 'nothing'}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("ls",),
        ("nonsense",),
        ("show", "x", "minus-one"),
        ("verify", "x", "3", "--all"),
        ("verify", "x", "--level", "smell"),
        ("ls", "ftp://host/run"),
        ("ls", "x", "--option", "secret"),
        ("ls", "x", "--storage-options", "secret"),
        ("ls", "x", "--optoin", "secret"),
        ("ls", "x", "--option", "key=secret"),  # a folder has no options
    ],
)
def test_usage(arguments):
    done = tally(*arguments)
    assert done.returncode == exits.USAGE and done.stdout == ""
    assert done.stderr.startswith("tallymark: ") and "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_store_error(tmp_path):
    (tmp_path / "journal").symlink_to("journal")  # a link that leads nowhere but to itself
    done = tally("ls", tmp_path)
    assert done.returncode == exits.STORE and done.stderr.startswith("tallymark: ")


def test_corrupt_journal(tmp_path):
    with tallymark.join(tmp_path, rank=0, world_size=1, launch_id="a") as worker:
        worker.report({}, step=1).wait()
    slot = tmp_path / "journal/0000000001.json"
    slot.chmod(0o644)
    slot.write_bytes(b"{}")
    done = tally("ls", tmp_path)
    assert done.returncode == exits.RECORDS and "Traceback" not in done.stderr
    assert "Traceback" in tally("ls", tmp_path, TALLYMARK_DEBUG="1").stderr


def test_every_error_has_a_code():
    def tree(kind):
        yield kind
        for below in kind.__subclasses__():
            yield from tree(below)

    for kind in tree(errors.TallymarkError):
        assert exits.code_of(kind.__new__(kind)) in exits.MEANING.keys() - {exits.OK, exits.UNEXPECTED}
    assert exits.code_of(ZeroDivisionError()) == exits.UNEXPECTED


def test_a_reader_that_goes_away(aborted):
    process = start("ls", "--all", aborted)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == exits.BROKEN_PIPE
    assert process.stderr.read() == ""
    process.stderr.close()
