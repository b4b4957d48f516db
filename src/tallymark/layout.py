"""The names: every key under a run, written and read here and nowhere else.

Rules a change must keep:
- Fixed-width decimals and ASCII lower case, so that byte order is number order.
- Prefixes end in `/`.
- The name of a marker is its testimony, and is derived from what it says: writing it twice is harmless.
- Data carry step *and* attempt in their path: a process of another attempt can only soil its own folder.
"""

from __future__ import annotations

import hashlib
import operator
import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple, SupportsIndex, cast

from tallymark.errors import InvalidInput
from tallymark.records import sha256

STEP_LIMIT = 10**16
KEY_BYTES_LIMIT = 1024
PART_BYTES_LIMIT = 255
HINT = "hint.json"
MEMBERS = "members/"
OURS = "_tallymark/"

_HEX8, _HEX16, _HEX32 = "[0-9a-f]{8}", "[0-9a-f]{16}", "[0-9a-f]{32}"
_COUNT = "(0|[1-9][0-9]{0,18})"
_MARKER = re.compile(
    rf"markers/([0-9]{{6}})/([0-9]{{16}})/([0-9]{{6}})-([0-9]{{6}})\.(saved|empty|failed)\.({_HEX8}|-)"
    rf"\.{_COUNT}\.{_COUNT}\.({_HEX16})\.({_HEX8})\.({_HEX32})\.json"
)
_MEMBER = re.compile(r"members/([0-9]{6})/([0-9]{6})\.([0-9a-f]{16,32})(\.left)?\.json")


class MarkerName(NamedTuple):
    """What the name of a marker tells, without reading its body."""

    first: int
    last: int
    status: str
    where: str
    files: int
    bytes: int
    sum: int
    seat: str
    digest: str


class MemberName(NamedTuple):
    """What the name of a seat or a farewell tells."""

    rank: int
    nonce: str
    left: bool


def slot_key(slot: int) -> str:
    """Where journal slot `slot` lies."""
    return f"journal/{slot:010d}.json"


def ballots_prefix(register: str) -> str:
    """Where the ballots of a register lie."""
    return f"ballots/{register}/"


def tally_key(digest: str) -> str:
    """Where the list of counted marker names lies, by its sha256."""
    return f"tallies/{digest}.txt"


def probe_key(nonce: str) -> str:
    """Where the server is asked, once per run, whether it refuses a second create. Deleted after."""
    return f"probe-{nonce}.json"


def members_prefix(attempt: int, rank: int | None = None) -> str:
    """Where the seats of an attempt, or of one rank in it, begin."""
    return f"{MEMBERS}{attempt:06d}/" + ("" if rank is None else f"{rank:06d}.")


def seat_key(attempt: int, rank: int, nonce: str) -> str:
    """A process's seat."""
    return f"{members_prefix(attempt, rank)}{nonce}.json"


def farewell_key(attempt: int, rank: int, nonce: str) -> str:
    """A process's farewell."""
    return f"{members_prefix(attempt, rank)}{nonce}.left.json"


def parse_member(key: str) -> MemberName | None:
    """The name of a seat or farewell, or None for a stranger."""
    match = _MEMBER.fullmatch(key)
    return MemberName(int(match[2]), match[3], match[4] is not None) if match else None


def markers_prefix(attempt: int, step: int | None = None) -> str:
    """Where the markers of an attempt, or of one step in it, begin."""
    return f"markers/{attempt:06d}/" + ("" if step is None else f"{step:016d}/")


def markers_after(attempt: int, step: int) -> str:
    """A key after all markers of `step` and before those of any later one."""
    return f"markers/{attempt:06d}/{step:016d}0"


def marker_key(attempt: int, step: int, name: MarkerName) -> str:
    """Where a marker lies."""
    return (
        f"{markers_prefix(attempt, step)}{name.first:06d}-{name.last:06d}.{name.status}.{name.where}"
        f".{name.files}.{name.bytes}.{name.sum:016x}.{name.seat}.{name.digest}.json"
    )


def parse_marker(key: str) -> tuple[int, MarkerName] | None:
    """(step, name) of a marker's key, or None for a stranger."""
    match = _MARKER.fullmatch(key)
    if match is None or int(match[3]) > int(match[4]) or (match[5] == "saved" and match[6] == "-"):
        return None
    name = MarkerName(
        int(match[3]), int(match[4]), match[5], match[6], int(match[7]), int(match[8]), int(match[9], 16),
        match[10], match[11],
    )  # fmt: skip
    return int(match[2]), name


def checkpoint_prefix(step: int, attempt: int) -> str:
    """The folder that the ranks of an attempt fill at a step."""
    return f"checkpoints/{step:016d}-{attempt:06d}/"


def inventory_key(step: int, attempt: int) -> str:
    """Where the inventory of a sealed commit lies."""
    return f"{checkpoint_prefix(step, attempt)}{OURS}inventory.jsonl.gz"


def manifest_key(step: int, attempt: int) -> str:
    """Where the copy of a sealed commit's entry lies."""
    return f"{checkpoint_prefix(step, attempt)}{OURS}manifest.json"


def where(path: str, kind: str) -> str:
    """8 hex digits that stand for a checkpoint's path and kind in a marker's name.

    The kind is in it because rule 5 compares kinds too, and the commit path reads one body only.
    """
    return sha256(f"{path}\0{kind}".encode())[:8]


def fingerprint(files: Iterable[tuple[str, int]]) -> int:
    """The additive fingerprint of (path, size) pairs: of a union of disjoint sets it is the sum, mod 2**64.

    A name that is not Unicode may be listed (a stranger's file on a disk), so it must not stop the count.
    """
    total = 0
    for path, size in files:
        digest = hashlib.sha256(f"{path}\0{size}".encode("utf-8", "surrogatepass")).digest()
        total += int.from_bytes(digest[:8], "big")
    return total % 2**64


def is_data(path: str) -> bool:
    """Whether a path inside a checkpoint folder is the users' (not ours, not a folder marker)."""
    return not path.startswith(OURS) and not path.endswith("/")


def check_path(path: str, *, prefix_bytes: int = 0) -> None:
    """Refuse a relative path that no checkpoint may hold. `prefix_bytes` is what the store puts before it.

    Raises InvalidInput for an absolute path, `..`, `.`, an empty part, NUL or control characters, invalid Unicode,
    our own folder, and keys beyond 1,024 bytes or parts beyond 255.
    """
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError as problem:
        raise InvalidInput(f"the file name {path!r} is not valid Unicode; rename the file") from problem
    parts = path.split("/")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"the path {path!r} is not a plain relative path inside the checkpoint")
    if any(unicodedata.category(character) == "Cc" for character in path):
        raise InvalidInput(f"the path {path!r} holds a control character; rename the file")
    if parts[0] == OURS[:-1]:
        raise InvalidInput(f"the path {path!r} lies in {OURS!r}, which belongs to tallymark; rename the folder")
    if any(part.startswith(".tallymark-") for part in parts):
        raise InvalidInput(f"the path {path!r} has a part that begins with '.tallymark-', which belongs to tallymark")
    if longest := [part for part in parts if len(part.encode()) > PART_BYTES_LIMIT]:
        raise InvalidInput(f"the name {longest[0]!r} is longer than {PART_BYTES_LIMIT} bytes; shorten it")
    if prefix_bytes + size > KEY_BYTES_LIMIT:
        raise InvalidInput(
            f"the path {path!r} makes a key of {prefix_bytes + size} bytes; the limit is {KEY_BYTES_LIMIT}. Shorten it"
        )


def check_step(step: object) -> int:
    """A step as a plain integer, 0 <= step < 10**16. Raises InvalidInput."""
    kind = type(step).__name__
    try:
        number = operator.index(cast(SupportsIndex, step))
    except TypeError as problem:  # arrays have an __index__ too, which works for some of them only
        raise InvalidInput(f"step={step!r:.80}: a step is an integer, not a {kind}") from problem
    if isinstance(step, bool):
        raise InvalidInput(f"step={step!r}: a step is an integer, not a {kind}")
    if not 0 <= number < STEP_LIMIT:
        shown = number if number.bit_length() < 100 else f"an integer of {number.bit_length()} bits"
        raise InvalidInput(f"step={shown}: a step lies between 0 and 10**16 - 1")
    return number
