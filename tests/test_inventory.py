"""The inventory's file: whole, or refused by name."""

from __future__ import annotations

import pytest

from tallymark import inventory, records
from tallymark.errors import RecordError
from tallymark.records import Commit, InventoryFile, InventoryRank

HEAD = records.Head(
    attempt=1, attempt_slot=1, base=None, checkpoint=None, report=None,
    finished=None, attempts=1, commits=1, aborts=0, retired=0,
)  # fmt: skip
COMMIT = Commit(
    run_id="a" * 32, slot=2, prev="b" * 64, attempt=1, head=HEAD, written_by="x", nonce="c" * 32, wall_time="x", step=5,
    checkpoint=records.Saved(path="p/", adopted=False, kind="files", ranks=((0, 0),), files=1, bytes=3),
    reporting_ranks=((0, 0),), metrics={}, tally_digest="d" * 64,
)  # fmt: skip
WHOLE = inventory.Inventory(
    files=tuple(InventoryFile(path=f"{n}", size=3, digest="e" * 64, ranks=((0, 0),)) for n in range(50)),
    ranks=(InventoryRank(rank=0, host="h", kind="files", metadata={}, metrics={}, durations_s={}),),
)


def test_an_inventory_comes_back_as_it_was_and_has_the_same_bytes_whoever_writes_it():
    body = inventory.encode(COMMIT, WHOLE)
    assert inventory.encode(COMMIT, WHOLE) == body
    assert inventory.decode(body, COMMIT) == WHOLE


def test_every_truncation_and_every_flipped_byte_is_refused_or_harmless():
    body = inventory.encode(COMMIT, WHOLE)
    for cut in range(len(body)):
        with pytest.raises(RecordError):
            inventory.decode(body[:cut], COMMIT)
    for place in range(10, len(body)):  # before that: gzip's header, whose time and system mean nothing
        flipped = bytearray(body)
        flipped[place] ^= 0x55
        with pytest.raises(RecordError):
            inventory.decode(bytes(flipped), COMMIT)
