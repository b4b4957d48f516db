"""Opening an attempt, and finding one: how a launch is admitted to the run.

Rules a change must keep:
- A launch id is admitted once. A launch that was admitted and is no longer live is superseded for good.
- An opener that slept through another launch's admission does not overthrow it.
- The old attempt is settled before the new one is opened.
- The base is chosen once, in the attempt entry, so that all ranks resume from the same commit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tallymark import records
from tallymark.driver import Driver
from tallymark.errors import InvalidInput, JoinTimeout, Superseded
from tallymark.history import AttemptFact, State
from tallymark.journal import Draft, Settled
from tallymark.launch import Identity
from tallymark.records import AnyEntry, Base
from tallymark.register import Patience

log = logging.getLogger("tallymark")
LOOK_FASTEST_S = 0.02
LOOK_SLOWEST_S = 2.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a launch asks of its attempt."""

    identity: Identity
    resume: str | int
    barrier_timeout_s: float


def open_attempt(driver: Driver, wish: Wish) -> AttemptFact:
    """Rank 0: admit the launch, or find it admitted. Raises Superseded, InvalidInput (nothing to resume from)."""
    journal = driver.journal
    journal.refresh()
    state = journal.state or journal.begin()
    found_at_join = len(state.attempts)
    known = state.attempt_of(wish.identity.launch_id)
    if known is None:
        driver.settle()

        def derive(now: State | None) -> Draft | Settled[None]:
            assert now is not None  # the run has begun
            if now.attempt_of(wish.identity.launch_id) is not None:
                return Settled(None)
            if len(now.attempts) != found_at_join:
                raise _superseded(wish, None, now)
            return _draft(now, wish)

        entry: AnyEntry | None = journal.append(derive)
        _tell(entry, state)
    return _admitted(journal.state, wish)


def find_attempt(driver: Driver, wish: Wish, *, timeout_s: float, patience: Patience) -> AttemptFact:
    """Other ranks: wait until rank 0 has opened the attempt of this launch. Raises JoinTimeout, Superseded."""
    journal = driver.journal
    deadline = patience.clock() + timeout_s
    pause = LOOK_FASTEST_S
    while True:
        journal.refresh()
        state = journal.state
        if state is not None and state.attempt_of(wish.identity.launch_id) is not None:
            return _admitted(state, wish)
        if patience.clock() >= deadline:
            newest = f"attempt {len(state.attempts)} of another launch" if state and state.attempts else "none"
            raise JoinTimeout(
                f"rank {wish.identity.rank} waited {timeout_s:g} s for rank 0 to open the attempt of launch "
                f"{wish.identity.launch_id!r}; the newest attempt is {newest}. Did rank 0 start, with the same "
                "launch id and the same run?"
            )
        patience.sleep(pause * (1 + patience.random()))
        pause = min(max(LOOK_SLOWEST_S, wish.identity.world_size / 1000), pause * 1.5)


def _admitted(state: State | None, wish: Wish) -> AttemptFact:
    """The attempt of this launch, if it is still live and this rank agrees with it."""
    assert state is not None
    fact = state.attempt_of(wish.identity.launch_id)
    live = state.live
    if fact is None or live is None or fact.number != live.number:
        raise _superseded(wish, fact.number if fact else None, state)
    who = f"rank {wish.identity.rank}"
    if fact.world_size != wish.identity.world_size:
        raise InvalidInput(
            f"{who} was told world_size={wish.identity.world_size} (from {wish.identity.world_size_from}), but attempt "
            f"{fact.number} of launch {fact.launch_id!r} was opened with {fact.world_size}: all ranks must agree"
        )
    if fact.barrier_timeout_s != wish.barrier_timeout_s:
        raise InvalidInput(
            f"{who} joins with barrier_timeout_s={wish.barrier_timeout_s:g}, but attempt {fact.number} was opened with "
            f"{fact.barrier_timeout_s:g}: all ranks must agree"
        )
    if fact.resume != wish.resume:
        raise InvalidInput(
            f"{who} joins with resume={wish.resume!r}, but attempt {fact.number} was opened with {fact.resume!r}: "
            "all ranks must agree"
        )
    return fact


def _draft(state: State, wish: Wish) -> Draft:
    fields = {
        "launch_id": wish.identity.launch_id,
        "world_size": wish.identity.world_size,
        "barrier_timeout_s": wish.barrier_timeout_s,
        "resume": wish.resume,
        "base": choose_base(state, wish.resume),
    }
    return Draft(records.Attempt, len(state.attempts) + 1, fields)


def choose_base(state: State, resume: str | int) -> Base | None:
    """The commit that `resume` means in this state. Raises InvalidInput, saying which steps there are."""
    if resume == "never":
        return None
    if resume == "auto":
        return state.newest
    if resume == "must":
        if state.newest is None:
            raise InvalidInput("resume='must', and the lineage has no checkpoint yet: use 'auto' for a first launch")
        return state.newest
    lineage = [fact for fact in state.lineage() if fact.saved and not fact.retired]
    others = [fact for fact in state.commits.values() if fact.saved and not fact.retired]
    found = [fact for fact in lineage if fact.step == resume] or [fact for fact in others if fact.step == resume]
    if not found:
        steps = ", ".join(str(fact.step) for fact in lineage[-8:]) or "none"
        raise InvalidInput(f"resume={resume}: no live checkpoint at that step; the newest of the lineage are: {steps}")
    return Base(slot=found[-1].slot, step=found[-1].step)


def _superseded(wish: Wish, attempt: int | None, state: State) -> Superseded:
    live = state.live
    assert live is not None
    return Superseded(
        f"launch {wish.identity.launch_id!r} is superseded: attempt {live.number} (launch {live.launch_id!r}) rules "
        "the run. Stop this process; to train on, start a new launch with a launch id that was never used",
        attempt=attempt,
        live_attempt=live.number,
    )


def _tell(entry: AnyEntry | None, before: State) -> None:
    if isinstance(entry, records.Attempt) and entry.resume == "auto" and entry.base is None and before.attempts:
        log.warning(
            "attempt %s starts from scratch: %s earlier attempts of this run left no committed checkpoint",
            entry.attempt,
            len(before.attempts),
        )
