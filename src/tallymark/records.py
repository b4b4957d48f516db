"""The records: what is written to the store, as typed, versioned, canonical JSON.

This file alone knows the bytes. Rules a change must keep:

- Bytes are canonical: UTF-8, keys sorted, no spaces, no NaN. The same record always has the same bytes.
- `format` is `tallymark.<what>/<major>`. A reader ignores fields it does not know, and refuses an unknown kind or
  another major format. So: a new optional field needs no new format; a change of meaning does.
- Decoding is strict: a torn, foreign, ambiguous (duplicate key) or badly typed record is a `RecordError`.
- User values (metrics, metadata) are made plain by `to_plain` when they come in and by `from_plain` when they go out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from tallymark.errors import InvalidInput, RecordError

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
Plain: TypeAlias = dict[str, Any]
"""A user's mapping as `to_plain` made it."""

STATUSES = ("saved", "empty", "failed")
USER_BYTES_LIMIT = 1 << 20
_DEPTH_LIMIT = 64
_INT = re.compile(r"-?[1-9][0-9]{0,639}")  # 640 digits: what every Python can read, however its own limit is set


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
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")
    except (ValueError, TypeError, RecursionError, RecordError) as problem:
        raise InvalidInput(f"this value cannot be written as strict JSON: {problem}") from problem


def sha256(body: bytes) -> str:
    """64 hex digits."""
    return hashlib.sha256(body).hexdigest()


def parse(body: bytes, what: str) -> Any:
    """Strict JSON, as plain values. `what` names the object in the error."""
    try:
        value = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
        if b"\\" in body:  # an escape may spell half a surrogate pair, which nobody could write again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{what}: not a whole JSON record ({problem})") from problem


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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


# ------------------------------------------------------------------------------------------- users' values


def to_plain(value: Any, name: str) -> Plain:
    """A user's mapping as strict JSON values that `from_plain` turns back into equal ones.

    Values may be None, bool, int, float, str, and lists, tuples and mappings of these; 0-dimensional numpy, torch or
    jax values become the Python scalar that they hold; tuples become lists. NaN, infinities and integers beyond 2**53
    are tagged, so that any JSON reader sees them whole. Raises InvalidInput, naming the place and the value.
    """
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a mapping with str keys, not {type(value).__name__}: {_show(value)}")
    plain: Plain = _plain(value, name, 0)
    size = len(canonical(plain))
    if size > USER_BYTES_LIMIT:
        raise InvalidInput(f"{name} take {size} bytes as JSON; the limit is {USER_BYTES_LIMIT}. Write a file instead")
    return plain


def from_plain(value: Any) -> Any:
    """The user's value that `to_plain` encoded. Raises RecordError for what `to_plain` never writes."""
    return _user(value, 0)


def _user(value: Any, depth: int) -> Any:
    if depth > _DEPTH_LIMIT + 1:
        raise RecordError(f"a user's value is nested more than {_DEPTH_LIMIT} deep")
    if isinstance(value, list | tuple):
        return [_user(item, depth + 1) for item in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        [(key, text)] = value.items()
        if key == "$float" and text in ("nan", "inf", "-inf"):
            return float(text)
        if key == "$int" and isinstance(text, str) and _INT.fullmatch(text):
            return int(text)
    for key in value:
        if key.startswith("$") and not key.startswith("$$"):
            raise RecordError(f"{key!r:.80} is no tag that this version knows, or its value is malformed")
    return {(key[1:] if key.startswith("$$") else key): _user(item, depth + 1) for key, item in value.items()}


def _plain(value: Any, name: str, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        raise InvalidInput(f"{name:.200} is nested more than {_DEPTH_LIMIT} deep, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if abs(number) <= 2**53 else {"$int": _digits(number, name)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, Mapping):
        plain = {_key(key, name): _plain(item, f"{name}[{key!r}]", depth + 1) for key, item in value.items()}
        if len(plain) != len(value):
            raise InvalidInput(f"{name} has two keys of the same text")
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item, f"{name}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _plain(_scalar(value, name), name, depth)


def _scalar(value: Any, name: str) -> bool | int | float | str:
    """What a 0-dimensional array holds."""
    shape = getattr(value, "shape", None)
    what = f"{name} is a {type(value).__module__}.{type(value).__qualname__}"
    if not isinstance(shape, tuple) or shape or not callable(getattr(value, "item", None)):
        hint = f" of shape {tuple(shape)}: report a scalar, or write a file" if isinstance(shape, tuple) else ""
        raise InvalidInput(f"{what}{hint}, not a plain value")
    try:
        item = value.item()
        if type(item) is type(value) and (item != item or float(item) == item):
            item = float(item)  # np.longdouble holds itself; taken if nothing is lost
        blank = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M") or bool(getattr(value, "mask", False))
    except Exception as problem:
        raise InvalidInput(f"{what} whose value cannot be had: {problem}") from problem
    if blank or not isinstance(item, bool | int | float | str):  # a masked number is none; a date is no count
        raise InvalidInput(f"{what} that holds no plain value: {_show(value)}. Convert it first")
    return item


def _key(key: Any, name: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"{name} has the key {_show(key)} of type {type(key).__name__}; keys must be str")
    text = _text(key, f"a key of {name}")
    return "$" + text if text.startswith("$") else text


def _text(value: str, name: str) -> str:
    text = str.__str__(value)  # a subclass's own __str__ may say something else: an enum's says its name
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise InvalidInput(f"{name} is not valid Unicode: {text!r:.80}") from problem
    return text


def _digits(number: int, name: str) -> str:
    if number.bit_length() > 2200 or not _INT.fullmatch(text := str(number)):
        raise InvalidInput(f"{name} is an integer of {number.bit_length()} bits: more than 640 digits cannot be kept")
    return text


def _show(value: Any) -> str:
    """The start of a value's repr, for a message about it."""
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - a message about a bad value must not fail on how bad it is
        return "(it has no repr)"


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
