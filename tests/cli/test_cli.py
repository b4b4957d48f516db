"""Each command as a process: what it prints, its JSON, its exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.command import COMMAND, environment, shard, start, tally, two_ranks

import tallymark
from tallymark import errors
from tallymark.cli import exits
from tallymark.cli.commands import COMMANDS

DOCS = Path(__file__).parents[2] / "docs/reference/cli.md"


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


def document(*arguments):
    done = tally(*arguments, "--json")
    assert done.stderr == "" and done.returncode == 0
    assert done.stdout.isascii()
    return json.loads(done.stdout, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


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


# ------------------------------------------------------------------------------------- help and looks


def test_help_teaches():
    done = tally("--help")
    assert done.returncode == 0
    for name, command in COMMANDS.items():
        assert command.examples[0][0] in done.stdout and f"    {name} " in done.stdout
    assert tally("--version").stdout == f"tallymark {tallymark.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name):
    done = tally(name, "--help", COLUMNS="60")
    assert done.returncode == 0
    for example, _ in COMMANDS[name].examples:
        assert example.startswith(f"tallymark {name}") and example in done.stdout
    for code in exits.MEANING:
        assert re.search(rf"^ +{code}  ", done.stdout, re.MULTILINE)


def test_help_is_cheap():
    loaded = "import sys; from tallymark.cli import main; main(['ls', '--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, env=environment(), check=True)
    assert "'rich'" not in done.stdout and "'fsspec'" not in done.stdout


def test_the_page_documents_codes_commands_and_keys(place, aborted):
    page = DOCS.read_text()
    for code in exits.MEANING:
        assert f"\n| {code} | " in page
    for name in COMMANDS:
        assert f"\n| `{name} " in page

    def keys(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                if key not in ("metrics", "metadata"):
                    yield from keys(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner)

    found = [document("ls", place), document("show", place), document("status", place), document("verify", place)]
    assert [key for key in keys(found) if f"`{key}`" not in page] == []
    abort = document("ls", "--all", aborted)["entries"][3]
    assert [key for key in keys(abort) if f"`{key}`" not in page] == []


def test_any_encoding(place):
    done = tally("ls", place, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0 and "gr\\xf6\\xdfe=nan" in done.stdout


@pytest.mark.parametrize("columns", ["200", "30"])
def test_on_a_terminal(place, columns):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "ls", str(place)],
        stdout=theirs,
        stderr=theirs,
        env=environment(COLUMNS=columns, NO_COLOR="1", TERM="xterm"),
    )
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert process.wait(60) == 0
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", seen), "no colours with NO_COLOR"
    text = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode())
    if columns == "200":
        assert max(map(len, text.splitlines())) <= 200
        assert re.search(r"1 +1 +2 +0-1 +2 +2\.0 KiB", text)
    else:  # nothing is cut: a line per value
        assert re.search(r"step +1\s+attempt +1\s+slot +2\s+ranks +0-1\s+files +2\s+bytes +2\.0 KiB", text)


# ------------------------------------------------------------------------------------- driving


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
    assert f"step 1 waits for rank 1 ({socket.gethostname()})" in said[1]
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
