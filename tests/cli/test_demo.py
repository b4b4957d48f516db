"""The demo, as a process: its outcome, its traces, its end when it is stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.cli.command import start, tally

from tallymark.cli import demo_model, demo_report, exits
from tallymark.cli.demo_plan import Outcome

DOCS = Path(__file__).parents[2] / "docs/reference/cli.md"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    place = tmp_path_factory.mktemp("demo") / "run"
    done = tally("demo", place, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return place, json.loads(done.stdout)


def test_all_is_as_promised(played):
    _, found = played
    assert found["ok"] and found["kept"] and all(one["ok"] for one in found["expectations"])
    assert len(found["expectations"]) >= 10
    committed = [(step["attempt"], step["step"], step["ranks"]) for step in found["steps"] if not step["reason"]]
    assert committed == [
        (1, 10, [0, 1, 2, 3]),
        (1, 20, [2]),
        (1, 30, [1, 3]),
        (1, 40, []),
        (1, 50, [0, 1, 2, 3]),
        (2, 60, [0, 1, 2]),
        (2, 70, [1]),
        (2, 80, [0, 1, 2]),
    ]
    [abort] = [step for step in found["steps"] if step["reason"]]
    assert (abort["attempt"], abort["step"], abort["reason"], abort["ranks"]) == (1, 60, "timeout", [2])
    assert f"rank 2 on {socket.gethostname()}" in abort["why"]
    assert found["attempts"][1] == {"attempt": 2, "world_size": 3, "base_step": 50}
    assert all(point["loss"] == point["uninterrupted"] for point in found["curve"])
    assert found["verified"]["checkpoints"] == 7
    assert found["killed"]["rank"] == 2 and len(found["killed"]["files_sent"]) == 1


def test_the_killed_rank_left_one_file_and_no_marker(played):
    place, found = played
    left = [str(file.relative_to(place)) for file in (place / "checkpoints/0000000000000060-000001").rglob("member*")]
    assert found["killed"]["files_sent"][0] in left
    mine = [path for path in left if re.search(r"member-0[678]", path)]
    assert len(mine) == 1


def test_the_page_documents_its_keys(played):
    _, found = played
    page = DOCS.read_text()
    names = [*found, *found["killed"], *found["steps"][0], *found["curve"][0], *found["attempts"][0]]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_a_demo_wants_an_empty_place(played):
    done = tally("demo", played[0])
    assert done.returncode == exits.USAGE and "there is a run" in done.stderr


def test_damage_is_found(played):
    place, _ = played
    [file] = (place / "checkpoints/0000000000000050-000001").rglob("member-03.state.json")
    body = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(body[:-1] + b" ")
    done = tally("verify", "--all", place)
    assert done.returncode == exits.DAMAGED and "member-03.state.json" in done.stdout and "step 50" in done.stdout
    file.write_bytes(body)
    assert tally("verify", "--all", place).returncode == 0


def test_for_people_and_leaves_nothing(tmp_path):
    done = tally("demo", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed with SIGKILL" in done.stdout and "FAIL" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("All as promised")
    assert list(tmp_path.iterdir()) == []


def test_stopped_in_the_middle_it_leaves_nothing(tmp_path):
    demo = start("demo", TMPDIR=str(tmp_path))
    pids = []
    assert demo.stdout is not None
    for line in demo.stdout:
        if "processes" in line:
            pids = [int(pid) for pid in re.findall(r"\d+", line.partition("processes")[2])]
            break
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=60)
    assert demo.returncode == exits.TERMINATED
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    deadline = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_so_is_said(capsys):
    outcome = Outcome(url="/nowhere", kept=True)
    assert not outcome.ok, "nothing judged is not well"
    outcome.expect("water is wet", True)
    outcome.expect("fire is cold", False, "it was hot")
    assert not demo_report.document(outcome)["ok"]
    demo_report.tell(outcome)
    said = capsys.readouterr().out
    assert "FAIL fire is cold" in said and "it was hot" in said and "NOT as it should be" in said


def test_a_member_is_all_in_its_state():
    one = demo_model.Member.new(3)
    for _ in range(5):
        one.train()
    other = demo_model.Member.load(3, one.state())
    for _ in range(5):
        one.train()
        other.train()
    assert one.state() == other.state() and one.loss() == other.loss()


@pytest.mark.parametrize("world_size", [1, 3, 4, 5])
def test_every_member_has_one_rank(world_size):
    shares = [demo_model.share(rank, world_size) for rank in range(world_size)]
    assert [member for mine in shares for member in mine] == list(range(demo_model.MEMBERS))
