"""Registers for stores without conditional create: single-disk Disk Paxos (Gafni and Lamport 2003) over plain requests.

This file alone knows the blocks and their names. A block is one proposer's word: its ballot, a pair (number, proposer
id); the phase; and the greatest ballot in which it accepted a value, with that value. In phase 2 that is its own.

Why two values are never decided. Say v is decided in ballot b: its phase 2 block landed, and a listing that began after
that showed no higher ballot. Take the least b' > b whose phase 2 block carries something else. Its phase 1 block was
not in that listing, so it landed after b's phase 2 block did; and the listing of b' began later still, so it showed b's
accept. So b' took its value from an accept in some ballot from b up to below b', and all of those carry v.

Rules a change must keep:
- Blocks are write-once, and what counts is the maximum over *all* blocks. Were a proposer's block overwritten, a
  duplicate of an older PUT that lands late would erase an accept that the argument above needs. So too no deletion.
- A proposer id is new for every call of `propose`: two calls with one id could accept two values in one ballot.
- The listing begins after the own block's PUT was acknowledged, and on a store with a visibility delay that much later.
- The register's own key gets decided bytes only. Everybody would put the same there, so that it does no harm if that
  PUT lands late, twice, or from a proposer that is long dead.
- A block that cannot be understood may hold an accept: it is refused, never passed over.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tallymark import layout, records
from tallymark.errors import CommitUnknown, InvalidInput, RecordError, StoreError, StoreUnsuited
from tallymark.records import Ballot
from tallymark.register import Patience, retrying
from tallymark.store.port import Store

T = TypeVar("T")
_NAME = re.compile(r"([0-9]{10})\.([0-9a-f]{16,32})\.([12])\.(?:([0-9]{10})\.([0-9a-f]{32})|-\.-)\.json")


class Block(NamedTuple):
    """What the name of a block tells. `accepted` is the number of the proposer's own ballot; 0 and "" for nothing."""

    number: int
    proposer: str
    phase: int
    accepted: int
    digest: str

    @property
    def ballot(self) -> tuple[int, str]:
        """Ballots are ordered as pairs."""
        return (self.number, self.proposer)

    @property
    def accepted_ballot(self) -> tuple[int, str]:
        """The ballot in which the proposer accepted the value under `digest`."""
        return (self.accepted, self.proposer)


def block_name(block: Block) -> str:
    """The name of a block below `layout.ballots_prefix`."""
    accepted = f"{block.accepted:010d}.{block.digest}" if block.accepted else "-.-"
    return f"{block.number:010d}.{block.proposer}.{block.phase}.{accepted}.json"


def parse_block(name: str) -> Block | None:
    """What a name tells, or None if it is not the name of a block."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Block(int(match[1]), match[2], int(match[3]), int(match[4] or 0), match[5] or "")


def value_digest(value: bytes) -> str:
    """32 hex digits that stand for a value in a block's name."""
    return records.sha256(value)[:32]


def new_proposer() -> str:
    """A fresh proposer id."""
    return secrets.token_hex(16)


class BallotRegister:
    """Cells by ballots, on any store with whole-object PUT whose reads and listings see every finished write.

    Undisturbed, a proposal is six requests, one after the other: read, put, list, put, list, put. On a cell that is
    decided it is one. Each look waits `visibility_delay_s` first. Values are UTF-8 text.
    """

    __slots__ = ("_nonce", "_patience", "_store")

    def __init__(self, store: Store, patience: Patience, nonce: Callable[[], str] = new_proposer) -> None:
        self._store = store
        self._patience = patience
        self._nonce = nonce

    def propose(self, key: str, body: bytes) -> bytes:
        """The decided bytes. Raises RecordError for a block that is not ours to understand."""
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise InvalidInput(f"the value proposed for {key!r} is not UTF-8 text: {problem}") from problem
        return _Proposal(self._store, self._patience, self._nonce(), key, body).run()

    def decided(self, key: str) -> bytes | None:
        """The bytes of the cell, or None while none lie at its own key. Raises StoreError."""
        return retrying(lambda: self._store.read(key), self._patience)


class _Proposal:
    """One call of `propose`."""

    def __init__(self, store: Store, patience: Patience, proposer: str, key: str, body: bytes) -> None:
        self._store = store
        self._patience = patience
        self._proposer = proposer
        self._key = key
        self._body = body
        self._prefix = layout.ballots_prefix(key)
        self._until = patience.deadline()
        self._highest = 0
        self._accepted: tuple[int, bytes] | None = None
        self._exposed = False

    def run(self) -> bytes:
        """Round after round until the register is decided. Once our value was sent to be accepted, others may decide
        it, whatever happens to us: from then on every failure is CommitUnknown.
        """
        try:
            return self._run()
        except StoreError as problem:
            if not self._exposed:
                raise
            message = f"whether our value of {self._key!r} in {self._store.url} wins is not known: {problem}"
            raise CommitUnknown(message, key=self._key) from problem

    def _run(self) -> bytes:
        for _ in self._patience.attempts(self._until):
            decided = self._retrying(lambda: self._store.read(self._key))
            if decided is not None:
                return decided
            if (value := self._round()) is not None:
                self._put(self._key, value)
                return value
        message = f"other proposers for {self._key!r} in {self._store.url} kept coming in between until patience ended"
        raise StoreError(message, key=self._key, retryable=True)

    def _round(self) -> bytes | None:
        """The decided value, or None if a higher ballot was seen."""
        number = self._highest + 1
        seen = self._announce(number, 1)
        if self._beaten(number, seen):
            return None
        value = self._choose(seen)
        self._exposed = self._exposed or value == self._body
        self._accepted = (number, value)
        seen = self._announce(number, 2)
        return None if self._beaten(number, seen) else value

    def _announce(self, number: int, phase: int) -> list[Block]:
        """Put our block, then look: all blocks, in a listing that began after ours was acknowledged."""
        accepted, value = self._accepted or (0, None)
        digest = "" if value is None else value_digest(value)
        name = block_name(Block(number, self._proposer, phase, accepted, digest))
        body = Ballot(
            register=self._key,
            number=number,
            proposer=self._proposer,
            phase=phase,
            accepted=accepted,
            value=None if value is None else value.decode("utf-8"),
        )
        self._put(self._prefix + name, records.canonical(body))
        if delay_s := self._store.visibility_delay_s:
            self._patience.sleep(delay_s)
            self._until += delay_s  # waiting to be seen is not being refused
        keys = self._retrying(lambda: [item.key for item in self._store.list(self._prefix)])
        if self._prefix + name not in keys:
            message = f"{self._store.url} does not list {name!r}, which it acknowledged: ballots are not safe here"
            raise StoreUnsuited(message, key=self._prefix + name)
        return [self._understood(key) for key in keys]

    def _understood(self, key: str) -> Block:
        block = parse_block(key.removeprefix(self._prefix))
        if block is None:
            message = f"{key!r} is no ballot that this version knows: written by a newer one, or a stranger's file"
            raise RecordError(message)
        return block

    def _beaten(self, number: int, seen: list[Block]) -> bool:
        highest = max(block.ballot for block in seen)
        self._highest = highest[0]
        return highest > (number, self._proposer)

    def _choose(self, seen: list[Block]) -> bytes:
        """The value of the greatest accepted ballot, or ours if nothing was accepted."""
        block = max(seen, key=lambda block: block.accepted_ballot)
        return self._value(block) if block.accepted else self._body

    def _value(self, block: Block) -> bytes:
        key = self._prefix + block_name(block)
        body = self._retrying(lambda: self._store.read(key))
        if body is None:
            message = f"{self._store.url} lists {key!r} and does not show it: ballots are not safe here"
            raise StoreUnsuited(message, key=key)
        ballot = records.decode(body, Ballot, key)
        value = (ballot.value or "").encode("utf-8")
        said = Block(ballot.number, ballot.proposer, ballot.phase, ballot.accepted, value_digest(value))
        if said != block or ballot.register != self._key:
            raise RecordError(f"{key!r} does not hold what its name says: it was damaged or moved")
        return value

    def _put(self, key: str, body: bytes) -> None:
        """Put the same bytes under the same key until that is acknowledged: twice does no harm."""
        self._retrying(lambda: self._store.put(key, body))

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(call, self._patience, until=self._until)
