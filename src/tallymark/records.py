"""The records: what is written to the store, as typed, versioned, canonical JSON.

This file alone knows the bytes. Rules a change must keep:

- Bytes are canonical: UTF-8, keys sorted, no spaces, no NaN. The same record always has the same bytes.
- `format` is `tallymark.<what>/<major>`. A reader ignores fields it does not know, and refuses an unknown kind or
  another major format. So: a new optional field needs no new format; a change of meaning does.
- Decoding is strict: a torn, foreign, ambiguous (duplicate key) or badly typed record is a `RecordError`.
- User values (metrics, metadata) are made plain by `to_plain` when they come in and by `from_plain` when they go out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from tallymark import strict
from tallymark.errors import InvalidInput, RecordError
from tallymark.strict import parse as parse
from tallymark.strict import sha256 as sha256
from tallymark.values import USER_BYTES_LIMIT as USER_BYTES_LIMIT
from tallymark.values import Plain as Plain
from tallymark.values import from_plain as from_plain
from tallymark.values import to_plain as to_plain

_END = r"$(?!\n)"  # in Python a `$` alone lets a line feed pass; written so, it means the end in every dialect
Hex64 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}" + _END, description="sha256, lower-case hex")]
Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16,32}" + _END, description="random, lower-case hex")]
Slot = Annotated[int, msgspec.Meta(ge=0, lt=10**10, description="a place in the journal")]
Step = Annotated[int, msgspec.Meta(ge=0, lt=10**16, description="the user's training step")]
AttemptNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**6, description="1, 2, 3 ...; 0 before the first")]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=10**6, description="global rank")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Ranges: TypeAlias = tuple[tuple[Rank, Rank], ...]
"""Sets of ranks as ascending, disjoint, inclusive ranges: ((0, 7), (9, 9))."""

STATUSES = ("saved", "empty", "failed")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What all records have in common."""


# ------------------------------------------------------------------------------------------- the journal


class Base(Record, frozen=True, kw_only=True):
    """The commit that an attempt starts from. `run_url` and `run_id` are null for a commit of this run."""

    slot: Slot
    step: Step
    run_url: str | None = None
    run_id: Nonce | None = None


class Point(Record, frozen=True, kw_only=True):
    """A commit, by its slot."""

    slot: Slot
    step: Step
    attempt: AttemptNumber


class Head(Record, frozen=True, kw_only=True):
    """What a reader needs to know after an entry. Redundant by design, and checked by whoever replays."""

    attempt: AttemptNumber
    attempt_slot: Slot | None
    base: Base | None
    checkpoint: Point | None
    report: Point | None
    finished: str | None
    attempts: Count
    commits: Count
    aborts: Count
    retired: Count


class Entry(Record, frozen=True, kw_only=True, tag_field="kind"):
    """A journal entry. `wall_time` and `written_by` are for people: nothing is decided by them."""

    format: str = "tallymark.entry/1"
    run_id: Nonce
    slot: Slot
    prev: Hex64 | None
    attempt: AttemptNumber
    head: Head
    written_by: str
    nonce: Nonce
    wall_time: str


class Genesis(Entry, frozen=True, kw_only=True, tag="genesis"):
    """Slot 0: the run begins, and says how its registers are decided: `create` or `ballots`."""

    registers: str


class Void(Entry, frozen=True, kw_only=True, tag="void"):
    """A damaged slot is passed over from now on, because a person said so."""

    void_slot: Slot
    void_sha256: Hex64
    why: str


class RollCall(Record, frozen=True, kw_only=True):
    """The call that an attempt was opened by, and the nonces that answered, by rank."""

    nonce: Nonce
    answers: tuple[Nonce, ...]


class Attempt(Entry, frozen=True, kw_only=True, tag="attempt"):
    """A launch is admitted to the run."""

    launch_id: str
    call: RollCall | None = None
    world_size: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    barrier_timeout_s: Annotated[float, msgspec.Meta(gt=0)]
    resume: str | Step
    base: Base | None


class Saved(Record, frozen=True, kw_only=True):
    """The checkpoint of a commit: where it lies (relative to the run unless adopted), whose it is, how much."""

    path: str
    adopted: bool
    kind: str
    ranks: Ranges
    files: Count
    bytes: Count


class Commit(Entry, frozen=True, kw_only=True, tag="commit"):
    """The step is whole. `checkpoint` is null if nobody saved. `metrics` are rank 0's."""

    step: Step
    checkpoint: Saved | None
    reporting_ranks: Ranges
    metrics: Plain
    tally_digest: Hex64


class Culprit(Record, frozen=True, kw_only=True):
    """A rank that stands behind an abort; `host` is "" where it is not known."""

    rank: Rank
    host: str
    detail: str


class Abort(Entry, frozen=True, kw_only=True, tag="abort"):
    """The step will never be committed. `culprits` quotes the first few of `ranks`."""

    step: Step
    reason: str
    ranks: Ranges
    culprits: tuple[Culprit, ...]
    detail: str


class Retire(Entry, frozen=True, kw_only=True, tag="retire"):
    """Commits that may be deleted from now on."""

    slots: tuple[Slot, ...]


class Pin(Entry, frozen=True, kw_only=True, tag="pin"):
    """A commit is kept for `name`."""

    commit_slot: Slot
    name: str


class Unpin(Entry, frozen=True, kw_only=True, tag="unpin"):
    """A pin is taken back."""

    commit_slot: Slot
    name: str


class Annotate(Entry, frozen=True, kw_only=True, tag="annotate"):
    """Metrics that came after the commit, and where from."""

    commit_slot: Slot
    metrics: Plain
    origin: str


class Finish(Entry, frozen=True, kw_only=True, tag="finish"):
    """The live attempt is over. Its open steps are settled as aborted."""

    status: str


AnyEntry: TypeAlias = Genesis | Void | Attempt | Commit | Abort | Retire | Pin | Unpin | Annotate | Finish


# ------------------------------------------------------------------------------------------- the ranks' words


class FileFact(Record, frozen=True, kw_only=True):
    """One file of a shard. `digest` is sha256, or null where the bytes were not ours to read (adopted)."""

    path: str
    size: Count
    digest: Hex64 | None


class Marker(Record, frozen=True, kw_only=True):
    """The body of a marker: a rank's whole word on a step."""

    format: str = "tallymark.marker/1"
    attempt: AttemptNumber
    step: Step
    first_rank: Rank
    last_rank: Rank
    seats: tuple[Nonce, ...]
    status: str
    host: str
    pid: Count
    path: str | None
    adopted: bool
    kind: str
    metadata: Plain
    files: tuple[FileFact, ...]
    metrics: Plain
    durations_s: dict[str, float]
    cause: str
    version: str


class Seat(Record, frozen=True, kw_only=True):
    """A process's claim to be a rank of an attempt."""

    format: str = "tallymark.seat/1"
    attempt: AttemptNumber
    rank: Rank
    nonce: Nonce
    host: str
    pid: Count
    version: str
    wall_time: str


class Farewell(Record, frozen=True, kw_only=True):
    """A rank's last word: it reports nothing after `last_step` (null: it never reported)."""

    format: str = "tallymark.farewell/1"
    attempt: AttemptNumber
    rank: Rank
    nonce: Nonce
    last_step: Step | None
    why: str


class Hint(Record, frozen=True, kw_only=True):
    """A slot known to be written once. Advisory."""

    format: str = "tallymark.hint/1"
    run_id: Nonce
    slot: Slot


# ------------------------------------------------------------------------------------------- the inventory


class InventoryHeader(Record, frozen=True, kw_only=True):
    """First line of an inventory: which commit it belongs to, and how many lines follow."""

    format: str = "tallymark.inventory/1"
    run_id: Nonce
    slot: Slot
    step: Step
    attempt: AttemptNumber
    path: str
    ranks: Count
    files: Count


class InventoryRank(Record, frozen=True, kw_only=True):
    """What one contributing rank said beside its files."""

    rank: Rank
    host: str
    kind: str
    metadata: Plain
    metrics: Plain
    durations_s: dict[str, float]


class InventoryFile(Record, frozen=True, kw_only=True):
    """One file of the checkpoint, and the ranks that wrote it (several, if they wrote the same bytes)."""

    path: str
    size: Count
    digest: Hex64 | None
    ranks: Ranges


class Ballot(Record, frozen=True, kw_only=True):
    """A proposer's write-once block. `accepted` is the number of its own ballot in which it last accepted `value`.

    0 and null until it accepted something; in phase 2 it is `number`.
    """

    format: str = "tallymark.ballot/1"
    register: str
    number: Annotated[int, msgspec.Meta(ge=1, lt=10**10)]
    proposer: Nonce
    phase: Annotated[int, msgspec.Meta(ge=1, le=2)]
    accepted: Annotated[int, msgspec.Meta(ge=0, lt=10**10)]
    value: str | None


R = TypeVar("R")
ENTRY_TYPES = (Genesis, Void, Attempt, Commit, Abort, Retire, Pin, Unpin, Annotate, Finish)
PUBLISHED = (*ENTRY_TYPES, Marker, Seat, Farewell, Hint, Ballot, InventoryHeader, InventoryRank, InventoryFile)
"""Every record type whose JSON Schema is published."""


# ------------------------------------------------------------------------------------------- bytes


def canonical(value: object) -> bytes:
    """The canonical JSON bytes of a record or of plain values.

    Raises InvalidInput for what JSON cannot hold, and for a record that its own reader would refuse: once it stood in
    the journal, nobody could go past it.
    """
    try:
        plain = msgspec.to_builtins(value)
        if isinstance(value, Record):  # as the reader sees it: `1800` in a field for floats becomes `1800.0`
            plain = msgspec.to_builtins(convert(plain, type(value), type(value).__name__))
        return strict.write(plain)
    except (ValueError, TypeError, RecursionError, RecordError) as problem:
        raise InvalidInput(f"this value cannot be written as strict JSON: {problem}") from problem


def decode(body: bytes, kind: type[R], what: str) -> R:
    """The record in `body`, which must be of `kind`. Raises RecordError, naming `what`."""
    return convert(parse(body, what), kind, what)


def convert(value: object, kind: type[R], what: str) -> R:
    """A plain value as a record of `kind`. Raises RecordError, naming `what`."""
    expected = _format_of(kind)
    if expected is not None:
        found = value.get("format") if isinstance(value, Mapping) else None
        if found != expected:
            raise RecordError(f"{what}: its format is {found!r}, and this version of tallymark reads {expected!r} only")
    tag = kind.__struct_config__.tag  # type: ignore[attr-defined]
    if tag is not None and not (isinstance(value, Mapping) and value.get("kind") == tag):
        raise RecordError(f"{what}: it is no {tag} entry")
    try:
        return msgspec.convert(value, type=kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise RecordError(f"{what}: {problem}") from problem


def decode_entry(body: bytes, slot: int) -> AnyEntry:
    """The journal entry in `body`. Raises RecordError."""
    what = f"journal slot {slot}"
    value = parse(body, what)
    if not isinstance(value, Mapping) or value.get("format") != "tallymark.entry/1":
        found = value.get("format") if isinstance(value, Mapping) else None
        raise RecordError(f"{what}: its format is {found!r}, and this version reads 'tallymark.entry/1' only")
    try:
        entry: AnyEntry = msgspec.convert(value, type=AnyEntry, strict=True)
        return entry
    except (msgspec.ValidationError, RecursionError) as problem:
        raise RecordError(f"{what}: {problem}") from problem


def _format_of(kind: type[Any]) -> str | None:
    default = dict(zip(kind.__struct_fields__[::-1], kind.__struct_defaults__[::-1], strict=False)).get("format")
    return default if isinstance(default, str) else None


def to_ranges(ranks: Iterable[int]) -> Ranges:
    """Ascending, disjoint, inclusive ranges."""
    ranges: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = (ranges[-1][0], rank)
        else:
            ranges.append((rank, rank))
    return tuple(ranges)


def from_ranges(ranges: Ranges) -> tuple[int, ...]:
    """The ranks, ascending."""
    return tuple(rank for first, last in ranges for rank in range(first, last + 1))
