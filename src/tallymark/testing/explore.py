"""Every history of a few proposers at one register, played with the real code: `python -m tallymark.testing.explore`.

This file alone knows what may happen between a proposer and its store, one request at a time, in any order:

- a request is answered; its reply is lost; or it fails and lands later, perhaps long after its sender is gone;
- every PUT may land again at any later time, any number of times; a late CREATE lands only where the key is free;
- a CREATE may be told "exists" of a key that is free (a 409);
- with `pages`, a listing is no snapshot: it shows what was there when it began, and any part of what came meanwhile;
- with `denials`, a request may be refused for good; that one does not land;
- a proposer may die at any point: every claim is checked in every state, so also in those where one never moves again.

How: a proposer is deterministic, so its state is the list of answers that it got (`replay`). What it asks next is
remembered per list of answers, so that the search over the proposers' joint histories is a walk through tables.

Rules a change must keep:
- What is claimed: the register's value never changes; whoever gets an answer gets that value, and it was proposed;
  whose proposal ended in a StoreError sees its value win in no future.
- The bound is the number of pauses that each proposer makes (a retry or a further round costs one): the real giving up
  is part of the history.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tallymark.ballots import BallotRegister
from tallymark.register import CreateRegister, Patience, Register
from tallymark.store.port import Store
from tallymark.testing.replay import DENIED, DONE, KEY, LOST, Answer, Op, Record, Subject, play


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a search covers. `pauses`: how often each proposer may pause, all in all, before it gives up."""

    proposers: int = 2
    pauses: int = 1
    faults: bool = True
    pages: bool = False
    denials: bool = False

    def __str__(self) -> str:
        kinds = [kind for kind in ("faults", "pages", "denials") if getattr(self, kind)]
        return f"{self.proposers} proposers, {self.pauses} pauses, {' '.join(kinds) or 'no faults'}"


@dataclass(slots=True)
class Report:
    """How much was searched. `endings` counts what the proposers were told, over states where all are."""

    states: int = 0
    moves: int = 0
    replays: int = 0
    endings: Counter[tuple[str | bytes, ...]] = field(default_factory=Counter)
    seconds: float = 0.0


class Violated(AssertionError):
    """A claim does not hold; `history` is how to get there."""

    def __init__(self, claim: str, history: Sequence[str]) -> None:
        super().__init__("\n  ".join([claim, *history]))
        self.claim = claim
        self.history = tuple(history)


class _Node(NamedTuple):
    """A proposer after some answers: what it asks next, or what it ended with; and all it ever sent, as bits."""

    record: Record
    op: Op | None
    outcome: str | bytes
    sent: int


class _Objects:
    """Store contents as bits: one for each (key, body) that was ever sent."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, bytes]] = []
        self.masks: dict[str, int] = {}
        self.conditional = 0
        self._bits: dict[tuple[str, bytes], int] = {}

    def bit(self, op: Op) -> int:
        pair = (op.key, op.body)
        if pair not in self._bits:
            self._bits[pair] = bit = 1 << len(self.pairs)
            self.pairs.append(pair)
            self.masks[op.key] = self.masks.get(op.key, 0) | bit
            if op.verb == "create":
                self.conditional |= bit
        return self._bits[pair]

    def landed(self, store: int, bit: int) -> int:
        """The store after a request landed."""
        mask = self.masks[self.pairs[bit.bit_length() - 1][0]]
        if bit & self.conditional and store & mask:
            return store
        return store & ~mask | bit

    def body(self, store: int, key: str) -> bytes | None:
        here = store & self.masks.get(key, 0)
        return self.pairs[here.bit_length() - 1][1] if here else None

    def keys(self, store: int, prefix: str) -> tuple[str, ...]:
        here = (self.pairs[index][0] for index in range(store.bit_length()) if store >> index & 1)
        return tuple(sorted(key for key in here if key.startswith(prefix)))


class _State(NamedTuple):
    store: int
    nodes: tuple[int, ...]
    begun: tuple[int, ...]  # what was there when the proposer's listing began; -1: none is under way


class _Search:
    def __init__(self, subject: Subject, bounds: Bounds) -> None:
        self.subject, self.bounds = subject, bounds
        self.objects = _Objects()
        self.values = [f"value of {index}".encode() for index in range(bounds.proposers)]
        self.nodes: list[list[_Node]] = [[] for _ in self.values]
        self.edges: dict[tuple[int, int, Answer], int] = {}
        self.ends: dict[tuple[int, str | bytes, int], int] = {}
        self.report = Report()

    def play(self, who: int, record: Record, sent: int) -> int:
        """Run the real code against a record, to where it asks for more or ends."""
        self.report.replays += 1
        now = play(self.subject, record, nonce=f"{who:016x}", value=self.values[who], pauses=self.bounds.pauses)
        if isinstance(now, Op):
            return self._add(who, _Node(record, now, "", sent))
        return self._add(who, _Node(record, None, now, sent))

    def _add(self, who: int, node: _Node) -> int:
        """A new node, or the same ending again: what a proposer was told before it ended matters no more."""
        if node.op is None:
            ending = (who, node.outcome, node.sent)
            if ending in self.ends:
                return self.ends[ending]
            self.ends[ending] = len(self.nodes[who])
        self.nodes[who].append(node)
        return len(self.nodes[who]) - 1

    def told(self, state: _State, who: int, answer: Answer, store: int, begun: int = -1) -> _State:
        """The state after `who` was told something."""
        at = state.nodes[who]
        edge = (who, at, answer)
        if edge not in self.edges:
            node = self.nodes[who][at]
            assert node.op is not None
            sends = node.op.verb in ("put", "create") and answer != DENIED
            sent = node.sent | (self.objects.bit(node.op) if sends else 0)
            self.edges[edge] = self.play(who, (*node.record, (node.op, answer)), sent)
        return _State(store, _with(state.nodes, who, self.edges[edge]), _with(state.begun, who, begun))

    def moves(self, state: _State) -> Iterator[tuple[str, _State]]:
        """All that can happen next, in words, and the state after it."""
        sent = 0
        for who, at in enumerate(state.nodes):
            node = self.nodes[who][at]
            sent |= node.sent
            if node.op is not None:
                for words, after in self._served(state, who, node.op):
                    yield f"{who}: {node.op.verb} {node.op.key}: {words}", after
        while late := sent & ~state.store if self.bounds.faults else 0:
            bit = late & -late
            sent &= ~bit
            if (store := self.objects.landed(state.store, bit)) != state.store:
                yield f"late: {self.objects.pairs[bit.bit_length() - 1][0]} lands", state._replace(store=store)

    def _served(self, state: _State, who: int, op: Op) -> Iterator[tuple[str, _State]]:
        store, objects = state.store, self.objects
        if op.verb == "read":
            yield "answered", self.told(state, who, Answer("ok", objects.body(store, op.key)), store)
        elif op.verb == "put":
            yield "done", self.told(state, who, DONE, objects.landed(store, objects.bit(op)))
        elif op.verb == "create":
            after = objects.landed(store, objects.bit(op))
            yield "answered", self.told(state, who, Answer("ok", after != store), after)
            if self.bounds.faults:
                yield "'exists'", self.told(state, who, Answer("ok", False), store)
        elif not self.bounds.pages:
            yield "answered", self.told(state, who, Answer("ok", objects.keys(store, op.key)), store)
        elif state.begun[who] < 0:
            yield "begins", state._replace(begun=_with(state.begun, who, store))
        else:
            for seen in _between(state.begun[who], store):
                yield "answered", self.told(state, who, Answer("ok", objects.keys(seen, op.key)), store)
        if self.bounds.faults:
            yield "lost", self.told(state, who, LOST, store)
        if self.bounds.denials:
            yield "denied", self.told(state, who, DENIED, store)

    def broken_claim(self, before: _State, state: _State) -> str | None:
        """The first claim that does not hold after a move, if any."""
        value = self.objects.body(state.store, KEY)
        if (was := self.objects.body(before.store, KEY)) is not None and value != was:
            return f"the decided value changed from {was!r} to {value!r}"
        for who, at in enumerate(state.nodes):
            outcome = self.nodes[who][at].outcome
            if self.nodes[who][at].op is not None or outcome == "unknown":
                continue
            if outcome == "refused":
                if value == self.values[who]:
                    return f"proposer {who} was told that its value did not go out, and it was decided"
            elif outcome not in self.values or outcome != value:
                return f"proposer {who} was told {outcome!r}, and the register holds {value!r}"
        return None

    def run(self, most_states: int) -> Report:
        """Depth first over all states."""
        began = time.perf_counter()
        start = _State(0, tuple(self.play(who, (), 0) for who in range(len(self.values))), (-1,) * len(self.values))
        seen = {start}
        path = [("", start, self.moves(start))]
        while path:
            _, state, moves = path[-1]
            words, after = next(moves, ("", None))
            if after is None:
                path.pop()
                continue
            self.report.moves += 1
            if (claim := self.broken_claim(state, after)) is not None:
                raise Violated(claim, [step for step, *_ in path[1:]] + [words])
            if after in seen:
                continue
            seen.add(after)
            assert len(seen) <= most_states, f"more than {most_states} states: choose narrower bounds"
            path.append((words, after, self.moves(after)))
            ends = [self.nodes[who][at] for who, at in enumerate(after.nodes)]
            if all(node.op is None for node in ends):
                self.report.endings[tuple(node.outcome for node in ends)] += 1
        self.report.states = len(seen)
        self.report.seconds = time.perf_counter() - began
        return self.report


def _with(items: tuple[int, ...], index: int, item: int) -> tuple[int, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _between(begun: int, now: int) -> Iterator[int]:
    """Every set of objects that a listing may show that began at `begun` and ends `now`. Nothing is ever deleted."""
    new = part = now & ~begun
    while True:
        yield begun & now | part
        if not part:
            return
        part = (part - 1) & new


def explore(subject: Subject, bounds: Bounds, *, most_states: int = 5_000_000) -> Report:
    """Search every history within `bounds`. Raises Violated with the history that breaks a claim."""
    return _Search(subject, bounds).run(most_states)


def by_create(store: Store, patience: Patience, nonce: Callable[[], str]) -> Register:
    """The register by conditional create, as a subject: it needs no nonce."""
    return CreateRegister(store, patience)


SUBJECTS: dict[str, Subject] = {"create": by_create, "ballots": BallotRegister}
SMALL = (
    ("create", Bounds(2, 2, denials=True)),
    ("create", Bounds(3, 1)),
    ("ballots", Bounds(2, 2, faults=False)),
    ("ballots", Bounds(2, 1, denials=True)),
    ("ballots", Bounds(2, 1, pages=True)),
    ("ballots", Bounds(3, 0, pages=True)),
)
LARGE = (
    ("create", Bounds(2, 3, denials=True)),
    ("ballots", Bounds(2, 3, faults=False)),
    ("ballots", Bounds(2, 2)),
    ("ballots", Bounds(2, 2, pages=True)),
    ("ballots", Bounds(3, 0, pages=True, denials=True)),
    ("ballots", Bounds(4, 0)),
)


def main(arguments: Sequence[str]) -> int:
    """Print a line for each search; with `--large` also those that take minutes and gigabytes."""
    sys.stdout.write(f"{'cells':8} {'bounds':42} {'states':>10} {'moves':>10} {'replays':>8} {'endings':>8} {'s':>7}\n")
    for name, bounds in SMALL + (LARGE if "--large" in arguments else ()):
        found = explore(SUBJECTS[name], bounds, most_states=20_000_000)
        counts = f"{found.states:10,} {found.moves:10,} {found.replays:8,} {found.endings.total():8,}"
        sys.stdout.write(f"{name:8} {bounds!s:42} {counts} {found.seconds:7.1f}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
