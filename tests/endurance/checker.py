"""Reads a run's objects and says what is wrong with them. Shares nothing with the library: this is the specification
read once more, from the bytes up.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@dataclass
class Story:
    """What the journal says. `fates`: (attempt, step) -> entry; `worlds`: attempt -> world size."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    worlds: dict[int, int] = field(default_factory=dict)
    fates: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    sealed: int = 0
    unsealed: int = 0

    def committed(self, attempt: int | None = None) -> list[int]:
        return [
            step
            for (number, step), entry in self.fates.items()
            if entry["kind"] == "commit" and attempt in (None, number)
        ]


def check(objects: Mapping[str, bytes]) -> Story:
    """The story, if the journal is sound and every file of every commit is there, whole."""
    story = _journal(objects)
    for (attempt, _), entry in story.fates.items():
        if entry["kind"] == "commit":
            files = _tally(objects, entry, story.worlds[attempt])
            _files(objects, story, entry, files)
    for key in objects:
        if key.startswith("checkpoints/") and key.endswith("/_tallymark/inventory.jsonl.gz"):
            step, attempt = (int(part) for part in key.split("/")[1].split("-"))
            fate = story.fates.get((attempt, step), {"kind": "nothing"})
            assert fate["kind"] == "commit", f"{key} seals what the journal calls {fate['kind']}"
    return story


def _journal(objects: Mapping[str, bytes]) -> Story:
    slots = sorted(key for key in objects if key.startswith("journal/"))
    assert slots == [f"journal/{slot:010d}.json" for slot in range(len(slots))], f"slots are not dense: {slots}"
    story, prev, live = Story(), None, 0
    highest, finished = -1, False
    for slot, key in enumerate(slots):
        entry = json.loads(objects[key])
        assert (entry["format"], entry["slot"], entry["prev"]) == ("tallymark.entry/1", slot, prev), key
        assert (entry["kind"] == "genesis") == (slot == 0), key
        assert entry["run_id"] == (story.entries[0] if story.entries else entry)["run_id"], key
        if entry["kind"] == "attempt":
            live, highest, finished = live + 1, -1, False
            assert entry["attempt"] == live, key
            assert entry["launch_id"] not in [other.get("launch_id") for other in story.entries], key
            story.worlds[live] = entry["world_size"]
            base = entry["base"]
            assert base is None or story.entries[base["slot"]]["kind"] == "commit", key
            highest = base["step"] if base else -1
        elif entry["kind"] in ("commit", "abort"):
            assert entry["attempt"] == live and not finished and entry["step"] > highest, key
            assert (live, entry["step"]) not in story.fates, f"{key} decides a step for the second time"
            highest = entry["step"]
            story.fates[live, highest] = entry
        elif entry["kind"] == "finish":
            assert entry["attempt"] == live and not finished, key
            finished = True
        assert entry["head"]["attempt"] == live, key
        assert entry["head"]["commits"] == len(story.committed()), key
        prev = sha256(objects[key])
        story.entries.append(entry)
    return story


def _tally(objects: Mapping[str, bytes], entry: dict[str, Any], world: int) -> list[list[str]]:
    """The names of the counted markers of those who saved, parted at the dots."""
    what = f"step {entry['step']} of attempt {entry['attempt']}"
    tally = objects[f"tallies/{entry['tally_digest']}.txt"]
    assert sha256(tally) == entry["tally_digest"], what
    names = [line.split(".") for line in tally.decode("ascii").splitlines()]
    spans = sorted(tuple(int(rank) for rank in name[0].split("-")) for name in names)
    ranks = [rank for first, last in spans for rank in range(first, last + 1)]
    assert ranks == list(range(world)), f"{what} counts the ranks {ranks} of {world}"
    assert entry["reporting_ranks"] == [[0, world - 1]], what
    saved = [name for name in names if name[1] == "saved"]
    assert {name[1] for name in names} <= {"saved", "empty"}, what
    contributing = sorted(int(name[0].split("-")[0]) for name in saved)
    said = [rank for first, last in (entry["checkpoint"] or {"ranks": []})["ranks"] for rank in range(first, last + 1)]
    assert said == contributing, what
    return saved


def _files(objects: Mapping[str, bytes], story: Story, entry: dict[str, Any], saved: list[list[str]]) -> None:
    """Every file that the counted markers claim is there, with its size and digest; sealed or not."""
    if entry["checkpoint"] is None:
        return
    step, attempt = entry["step"], entry["attempt"]
    folder = f"checkpoints/{step:016d}-{attempt:06d}/"
    assert entry["checkpoint"]["path"] == folder
    inventory = objects.get(f"{folder}_tallymark/inventory.jsonl.gz")
    if inventory is not None:
        header, *lines = (json.loads(line) for line in gzip.decompress(inventory).splitlines())
        assert (header["slot"], header["step"], header["attempt"]) == (entry["slot"], step, attempt)
        assert len(lines) == header["ranks"] + header["files"]
        assert sorted(line["rank"] for line in lines[: header["ranks"]]) == [int(name[0][:6]) for name in saved]
        files = lines[header["ranks"] :]
        manifest = objects[f"{folder}_tallymark/manifest.json"]
        assert sha256(manifest) == sha256(objects[f"journal/{entry['slot']:010d}.json"])
        story.sealed += 1
    else:
        claimed: dict[str, dict[str, Any]] = {}
        for name in saved:
            body = objects[f"markers/{attempt:06d}/{step:016d}/{'.'.join(name)}"]
            assert sha256(body)[:32] == name[7]
            claimed.update({file["path"]: file for file in json.loads(body)["files"]})
        files = list(claimed.values())
        story.unsealed += 1
    for file in files:
        body = objects.get(folder + file["path"])
        assert body is not None, f"{folder}{file['path']} is missing, though step {step} is committed"
        assert (len(body), sha256(body)) == (file["size"], file["digest"]), f"{folder}{file['path']} differs"
    total = (len(files), sum(file["size"] for file in files))
    assert total == (entry["checkpoint"]["files"], entry["checkpoint"]["bytes"])
