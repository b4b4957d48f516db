"""The inventory: which files a committed checkpoint consists of, and what each contributing rank said beside them.

It follows from the commit's entry and the bodies of the markers that its tally names, so whoever writes it writes the
same bytes. Rules a change must keep:

- Exactly the markers in the tally count, whatever else lies beside them.
- Before sealing, a reader makes the inventory from the bodies; after it, from the file. If a body is gone, the file is
  there: look again.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from tallymark import layout, records
from tallymark.errors import RecordError
from tallymark.layout import MarkerName
from tallymark.records import Commit, InventoryFile, InventoryHeader, InventoryRank, Marker
from tallymark.register import Patience, read_all, retrying
from tallymark.store.port import Store


@dataclass(frozen=True, slots=True)
class Inventory:
    """The files of a commit in order of their paths, and the words of its contributing ranks."""

    files: tuple[InventoryFile, ...]
    ranks: tuple[InventoryRank, ...]


def collect(markers: Mapping[MarkerName, Marker]) -> Inventory:
    """The inventory that these `saved` markers amount to. The same file from several ranks is one file."""
    owners: dict[str, list[int]] = {}
    facts: dict[str, records.FileFact] = {}
    words: list[InventoryRank] = []
    for name, body in sorted(markers.items()):
        ranks = range(name.first, name.last + 1)
        for fact in body.files:
            facts[fact.path] = fact
            owners.setdefault(fact.path, []).extend(ranks)
        words.extend(
            InventoryRank(
                rank=rank,
                host=body.host,
                kind=body.kind,
                metadata=body.metadata,
                metrics=body.metrics,
                durations_s=body.durations_s,
            )
            for rank in ranks
        )
    files = (
        InventoryFile(path=path, size=fact.size, digest=fact.digest, ranks=records.to_ranges(owners[path]))
        for path, fact in sorted(facts.items())
    )
    return Inventory(tuple(files), tuple(words))


def encode(commit: Commit, inventory: Inventory) -> bytes:
    """The inventory file of a commit: gzip of JSON lines, a header, then ranks, then files."""
    assert commit.checkpoint is not None
    header = InventoryHeader(
        run_id=commit.run_id,
        slot=commit.slot,
        step=commit.step,
        attempt=commit.attempt,
        path=commit.checkpoint.path,
        ranks=len(inventory.ranks),
        files=len(inventory.files),
    )
    lines = [records.canonical(line) for line in (header, *inventory.ranks, *inventory.files)]
    return gzip.compress(b"\n".join(lines) + b"\n", mtime=0)


def decode(body: bytes, commit: Commit) -> Inventory:
    """The inventory in a file, which must be the commit's. Raises RecordError."""
    what = f"the inventory of step {commit.step}"
    try:
        lines = gzip.decompress(body).splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise RecordError(f"{what}: not a whole gzip file ({problem})") from problem
    if not lines:
        raise RecordError(f"{what}: it has no lines")
    header = records.decode(lines[0], InventoryHeader, what)
    if (header.run_id, header.slot) != (commit.run_id, commit.slot):
        raise RecordError(f"{what}: it belongs to slot {header.slot} of run {header.run_id}")
    if len(lines) != 1 + header.ranks + header.files:
        raise RecordError(f"{what}: it has {len(lines)} lines instead of {1 + header.ranks + header.files}")
    ranks = tuple(records.decode(line, InventoryRank, what) for line in lines[1 : 1 + header.ranks])
    files = tuple(records.decode(line, InventoryFile, what) for line in lines[1 + header.ranks :])
    return Inventory(files, ranks)


def load(store: Store, commit: Commit, patience: Patience) -> Inventory:
    """The inventory of a commit, sealed or not. Raises RecordError or StoreError; never half an inventory."""
    key = layout.inventory_key(commit.step, commit.attempt)
    for _ in range(2):  # sealed -> the file; not sealed -> the bodies; sealed in between -> the file
        body = retrying(lambda: store.read(key), patience)
        if body is not None:
            return decode(body, commit)
        markers = read_tally(store, commit, patience)
        if markers is not None:
            return collect(markers)
    raise RecordError(f"step {commit.step} has neither an inventory nor all markers of its tally")


def read_tally(store: Store, commit: Commit, patience: Patience) -> dict[MarkerName, Marker] | None:
    """The bodies of the `saved` markers in the commit's tally; None if one of them is gone (it was sealed)."""
    listed = retrying(lambda: store.read(layout.tally_key(commit.tally_digest)), patience)
    if listed is None or records.sha256(listed) != commit.tally_digest:
        raise RecordError(f"the tally of step {commit.step} is missing or damaged ({commit.tally_digest})")
    names: dict[str, MarkerName] = {}
    for line in listed.decode("ascii").splitlines():
        parsed = layout.parse_marker(layout.markers_prefix(commit.attempt, commit.step) + line)
        if parsed is None:
            raise RecordError(f"the tally of step {commit.step} names {line!r}, which is no marker")
        if parsed[1].status == "saved":
            names[layout.marker_key(commit.attempt, commit.step, parsed[1])] = parsed[1]
    bodies = read_all(store, names, patience)
    if any(body is None for body in bodies):
        return None
    return {
        name: decode_marker(body, name, commit.attempt, commit.step)
        for name, body in zip(names.values(), bodies, strict=True)
        if body is not None
    }


def decode_marker(body: bytes, name: MarkerName, attempt: int, step: int) -> Marker:
    """The marker whose name says `name`. Raises RecordError if its bytes do not bear the name out."""
    what = f"the marker of rank {name.first} for step {step}"
    if records.sha256(body)[:32] != name.digest:
        raise RecordError(f"{what} does not hold the bytes that its name says")
    marker = records.decode(body, Marker, what)
    if len(marker.seats) != marker.last_rank - marker.first_rank + 1:
        raise RecordError(f"{what} does not name a seat for each of its ranks")
    if (marker.attempt, marker.step) != (attempt, step) or name_of(marker, body) != name:
        raise RecordError(f"{what} contradicts its name")
    return marker


def name_of(marker: Marker, body: bytes) -> MarkerName:
    """The name that a marker's content gives it."""
    files = [(fact.path, fact.size) for fact in marker.files]
    return MarkerName(
        first=marker.first_rank,
        last=marker.last_rank,
        status=marker.status,
        where=layout.where(marker.path, marker.kind) if marker.path is not None else "-",
        files=len(files),
        bytes=sum(size for _, size in files),
        sum=layout.fingerprint(files),
        seat=marker.seats[0][:8],
        digest=records.sha256(body)[:32],
    )


def tally_of(attempt: int, step: int, names: list[MarkerName]) -> bytes:
    """The list of counted marker names, as its object holds it."""
    prefix = layout.markers_prefix(attempt, step)
    keys = sorted(layout.marker_key(attempt, step, name)[len(prefix) :] for name in names)
    return ("\n".join(keys) + "\n").encode("ascii")
