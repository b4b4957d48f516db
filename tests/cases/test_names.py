"""Cases from the field about names, roots and files: 18, 19, 20."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.behaviours.fleet import Place, report, say, shard, wait

import tallymark
from tallymark import records

ODD_NAMES = ["lr[1e-4]*{a}", "a b", "a+b", "%41", "a#b", "a?b=c&d", "übung-モデル", "...", "~x", "a'\"b"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_run_name_is_taken_literally(shared_place, tmp_path, name):
    """Case 18: three steps commit and can be read; siblings that a pattern would match are untouched."""
    home = shared_place
    siblings = [home.below(other) for other in ("lr1", "A", "a", "ab")]
    for sibling in siblings:
        sibling.store().put("hint.json", b"theirs")
    place = home.below(name).as_users_do()
    saved = shard(tmp_path / "s", {f"{name}.bin": "x", "deep/%41": "y"})
    with place.join() as worker:
        for step in range(3):
            worker.report({"step": step}, saved, step=step).wait(60)
    assert place.committed() == [(1, 0), (1, 1), (1, 2)]
    checkpoint = place.open().at(2).checkpoint
    assert checkpoint is not None
    assert sorted(file.path for file in checkpoint.files()) == sorted([f"{name}.bin", "deep/%41"])
    folder = checkpoint.download(tmp_path / "down")
    assert (folder / f"{name}.bin").read_text() == "x" and (folder / "deep" / "%41").read_text() == "y"
    for sibling in siblings:
        assert {key: sibling.store().read(key) for key in sibling.keys()} == {"hint.json": b"theirs"}
    if home.kind == "local":
        assert sorted(os.listdir(home.url)) == sorted(["lr1", "A", "a", "ab", name])


def test_real_ranks_meet_in_a_run_with_an_odd_name(shared_place, fleet):
    """Case 18: two processes."""
    place = shared_place.below(ODD_NAMES[0])
    ships = fleet(place)
    saved = ships.shard("one", {"[a]*.bin": "x"})
    ships.run("a", [[say(step, path=saved) for step in range(3)] + [wait(2)], [say(step) for step in range(3)]])
    assert place.committed() == [(1, 0), (1, 1), (1, 2)]


def test_all_spellings_of_a_root_meet_at_one_place(tmp_path, fleet):
    """Case 19: one rank for each, in one step; each started in another folder."""
    out = tmp_path / "home" / "out"
    for folder in ("home/out", "home/deep", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "home")
    home, elsewhere = str(tmp_path / "home"), str(tmp_path / "elsewhere")
    spellings = [
        {"url": str(out)},
        {"url": "./out", "cwd": home},
        {"url": "out/", "cwd": home},
        {"url": "../out", "cwd": f"{home}/deep"},
        {"url": "~/out", "cwd": elsewhere},
        {"url": f"file://{out}", "cwd": elsewhere},
        {"url": "link/out", "cwd": elsewhere},
        {"url": str(out), "cwd": elsewhere, "as_path": True},
        {"url": f"{home}//./deep/../out//", "cwd": elsewhere},
    ]
    place = Place("local", str(out))
    ships = fleet(place)
    saved = ships.shard("one", {"a": "a"})
    told = ships.run(
        "a",
        [[report(0, path=saved)] for _ in spellings],
        plans=dict(enumerate(spellings)),
        environ={number: {"HOME": home} for number in range(len(spellings))},
    )
    assert {one["checkpoint"]["url"] for said in told.values() for one in said} == {
        f"{os.path.realpath(out)}/checkpoints/0000000000000000-000001"
    }
    assert place.entries(records.Commit)[0].reporting_ranks == ((0, len(spellings) - 1),)
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["link"]
    assert sorted(os.listdir(tmp_path / "home")) == ["deep", "out"]


@pytest.mark.parametrize(
    "root", [r"C:\out", "C:/out", "s3://", "s3:///x", "s3:/b/x", "", " ", "file://host/x", "gopher://x/y", "a\0b", None]
)
def test_a_root_that_two_sides_might_read_differently_is_refused(root, tmp_path, monkeypatch):
    """Case 19: up front, for ranks, drivers and readers alike."""
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: tallymark.join(root, rank=0, world_size=1, launch_id="a"),
        lambda: tallymark.open(root),
        lambda: tallymark.Driver(root),
    ):
        with pytest.raises(tallymark.InvalidInput):
            call()
    assert os.listdir(tmp_path) == []


def folder_of_all_sorts(folder: Path) -> dict[str, bytes]:
    """A folder with a dot-file, an empty file, links, and loops of links; and what is to arrive of it."""
    bodies = {"a/1.bin": b"one", "a/2.bin": b"two", "a/3.bin": b"three", ".dot": b"dot", "empty": b"", "z/4.bin": b"4"}
    shard(folder, bodies)
    (folder.parent / "far.bin").write_bytes(b"far")
    (folder / "link.bin").symlink_to(folder.parent / "far.bin")
    (folder / "a" / "loop").symlink_to(folder)
    (folder / "self").symlink_to("self")
    (folder / "linked").symlink_to("z")
    (folder / "hollow").mkdir()
    return {**bodies, "link.bin": b"far", "linked/4.bin": b"4"}


def arrived(place: Place, step: int) -> dict[str, bytes | None]:
    prefix = f"checkpoints/{step:016d}-000001/"
    store = place.store()
    return {key.removeprefix(prefix): store.read(key) for key in place.keys(prefix) if "/_tallymark/" not in key}


def test_an_upload_that_fails_on_one_file_and_is_retried_brings_each_file_once(
    shared_place, fleet, tmp_path, proxy, request
):
    """Case 20: a file of the middle fails twice."""
    place, hooks = shared_place, []
    expected = folder_of_all_sorts(tmp_path / "source")
    if place.kind == "s3":
        place = request.getfixturevalue("proxied_place")
        faults = [proxy.add("PUT", r"/a/3\.bin", answer=503), proxy.add("PUT", r"/a/3\.bin", drop_reply=True)]
    else:
        faults = []
        hooks = [{"call": "upload", "key": r"/a/3\.bin$", "do": "fail", "retryable": True, "times": 2}]
    ships = fleet(place)
    told = ships.run("a", [[report(0, path=str(tmp_path / "source"))]], hooks={0: hooks})
    assert told[0][0]["checkpoint"]["ranks"] == [0]
    assert all(fault.hits == 1 for fault in faults)
    assert arrived(place, 0) == expected
    checkpoint = place.open().at(0).checkpoint
    assert checkpoint is not None
    assert [file.path for file in checkpoint.files()] == sorted(expected)
    assert checkpoint.verify() == len(expected)


def test_an_entirely_empty_folder_is_refused_and_says_what_to_pass_instead(shared_place, tmp_path):
    """Case 20: as documented; also one that holds nothing but empty folders and loops."""
    (tmp_path / "empty" / "hollow").mkdir(parents=True)
    (tmp_path / "empty" / "hollow" / "loop").symlink_to(tmp_path / "empty")
    with shared_place.join() as worker:
        with pytest.raises(tallymark.InvalidInput, match="holds no files.*checkpoint=None"):
            worker.report({}, tmp_path / "empty", step=0)
        assert worker.report({}, None, step=0).wait(60).checkpoint is None


def test_a_link_that_leads_nowhere_is_refused_before_any_upload(shared_place, tmp_path):
    """Case 20: what it stood for is missing, and a checkpoint without it would not be whole."""
    folder = tmp_path / "s"
    shard(folder, {"a": "a"})
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    with shared_place.join() as worker:
        with pytest.raises(FileNotFoundError, match="gone"):
            worker.report({}, folder, step=0)
        assert shared_place.keys("checkpoints/") == []
        worker.report({}, step=0).wait(60)
