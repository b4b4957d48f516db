"""The driver: lists markers until a barrier is complete, then asks the journal to decide; then seals and sweeps.

Any number of drivers may run anywhere, and any may die at any point: what one leaves undone, the next does.
The hosted thread, `tallymark drive`, a waiting rank and the settling of an old attempt all come through here.

Rules a change must keep:
- Steps are decided in ascending order; only the lowest open step is ever put to the barrier.
- Nothing is swept before the journal has decided the step and, for a commit, the inventory was read back.
- A decision's fields rest on the observation; whether it is still wanted is asked of the state in `derive`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tallymark import barrier, history, inventory, layout, records
from tallymark.adopted import opener
from tallymark.barrier import Abort, Commit, Look, Observation, Verdict, Wait
from tallymark.decision import abort_draft, commit_draft
from tallymark.errors import CommitUnknown, StoreError
from tallymark.history import State
from tallymark.journal import Draft, Journal, Settled
from tallymark.observe import Watch
from tallymark.records import AnyEntry
from tallymark.register import Patience, retrying
from tallymark.seal import Sealer
from tallymark.store.open import open_store
from tallymark.store.port import RunStore

log = logging.getLogger("tallymark")

POLL_FASTEST_S = 0.01
POLL_SLOWEST_S = 2.0
POLL_OPEN_S = 0.5
"""Slowest while a step is open: a farewell is looked for in one poll of four, and should be seen within seconds."""
TELL_EVERY_S = 30.0
SEAL_BACK = 64
"""How many entries back a driver that starts looks for commits that nobody sealed. The markers of others stay."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll came to: entries that are new in the journal, whether anything moved, and what is waited for.

    `waiting_for` are the missing ranks of the lowest open step, `step` (None: no step is open).
    """

    entries: tuple[AnyEntry, ...]
    moved: bool
    step: int | None = None
    waiting_for: tuple[int, ...] = ()


class Driver:
    """Decides the steps of a run. Not for use by two threads at once; open one driver per thread.

    `url`, `storage_options` and `store` are those of `tallymark.open`. Raises InvalidInput, StoreError.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        store: Any = None,
    ) -> None:
        place = open_store(url, storage_options=storage_options, store=store)
        self._begin(place, opener(storage_options), Patience())

    @classmethod
    def over(cls, store: RunStore, open_data: Callable[[str], RunStore], patience: Patience) -> Self:
        """A driver on a store that is open already: for a worker, and for the settling of an attempt."""
        made = cls.__new__(cls)
        made._begin(store, open_data, patience)
        return made

    def _begin(self, store: RunStore, open_data: Callable[[str], RunStore], patience: Patience) -> None:
        self._store = store
        self._data = open_data
        self._patience = patience
        self.journal = Journal(store, patience=patience)
        self._sealer = Sealer(store, patience)
        self._watch: Watch | None = None
        self._kept: list[AnyEntry] = []
        self._started = False
        self._quiet = 0
        self._told = float("-inf")
        self._nudge = threading.Event()

    # ------------------------------------------------------------------------------------- one poll

    def poll(self) -> Poll:
        """Look once, decide what can be decided, seal what was committed. Raises StoreError and JournalCorrupt.

        Costs one request when no step is open: a listing of the markers, or, every fourth time, a look at the journal.
        While one is open it is a listing, and in two polls of four a look at the farewells or at the journal beside it.
        """
        turn = self._quiet % 4
        if self._watch is None or turn == 3:
            self.journal.refresh()
        self._absorb(self.journal.take())
        watch = self._watch
        moved = bool(self._kept)
        verdict: Verdict | None = None
        if watch is not None:
            if turn == 1 and watch.steps:
                watch.list_members()
            if turn != 3 or moved or watch.steps:
                moved |= watch.list_markers() > 0
            verdict = self._decide_open(watch)
        self._sealer.work()
        entries = self._take()  # last, so that an error on the way loses none
        self._quiet = 0 if moved or entries else self._quiet + 1
        waiting = verdict.missing if isinstance(verdict, Wait) and self._watch is watch else ()
        step = min(watch.steps, default=None) if watch is not None and watch is self._watch else None
        return Poll(tuple(entries), moved or bool(entries), step, waiting)

    def follow(self) -> list[AnyEntry]:
        """Only read on in the journal; the entries that are new. Raises StoreError and JournalCorrupt."""
        self.journal.refresh()
        self._quiet = 0  # the next poll lists markers
        return self._take()

    def settle(self) -> State | None:
        """Decide every complete step of the live attempt, from a fresh look; the state then.

        For whoever opens the next attempt: a crash right after the last marker loses nothing.
        """
        while True:
            self.journal.refresh()  # each time: what is asked for may be gone, since another driver has decided
            self._take()
            watch = self._watch
            if watch is None:
                break
            watch.list_members()
            watch.list_markers()
            if not isinstance(self._decide_open(watch, settling=True), Look):
                break
            self._patience.sleep(max(0.05, min(1.0, self._store.visibility_delay_s)))
        self._take()
        return self.journal.state

    def _decide_open(self, watch: Watch, *, settling: bool = False) -> Verdict | None:
        """Put the lowest open step to the barrier until it must wait; the last verdict.

        What no look finds is given up once the step's deadline has passed, or at once when the attempt is settled.
        """
        watch.check_deadlines()
        asked: Look | None = None
        while self._watch is watch and watch.steps:
            step = min(watch.steps)
            seen = watch.observation(step)
            verdict = barrier.decide(seen)
            match verdict:
                case Wait():
                    return verdict
                case Look():
                    if verdict == asked and (settling or watch.steps[step].deadline is not None):
                        asked = None
                        if watch.give_up(step, verdict):
                            continue
                        return verdict
                    if verdict == asked:
                        return verdict  # looking again at once shows no more: the store needs its visibility delay
                    asked = verdict
                    watch.fetch(step, verdict, *self._tally_early(watch, seen))
                case Commit() | Abort():
                    asked = None
                    entry = self._decide(watch, step, verdict)
                    self._absorb(self.journal.take(), ours=entry.slot if entry else None)
        return None

    def _tally_early(self, watch: Watch, seen: Observation) -> list[Callable[[], None]]:
        """Every rank has spoken: write the tally's names beside the other looks, which saves a round trip."""
        if barrier.missing(seen) or watch.steps[seen.step].tallied == len(seen.markers):
            return []
        return [lambda: self._put_tally(watch, seen.step)]

    def _put_tally(self, watch: Watch, step: int) -> None:
        seen = watch.steps[step]
        names = list(seen.markers)
        tally = inventory.tally_of(watch.attempt.number, step, names)
        digest = records.sha256(tally)
        retrying(lambda: self._store.put(layout.tally_key(digest), tally), self._patience)
        seen.tally, seen.tallied = digest, len(names)

    # ------------------------------------------------------------------------------------- deciding

    def _decide(self, watch: Watch, step: int, verdict: Commit | Abort) -> AnyEntry | None:
        """Have the step decided; the entry, if it is ours."""
        attempt = watch.attempt.number
        if isinstance(verdict, Commit):
            if watch.steps[step].tallied != len(watch.steps[step].markers):
                self._put_tally(watch, step)
            draft = commit_draft(watch, step, verdict)
        else:
            draft = abort_draft(watch, step, verdict)

        def derive(state: State | None, draft: Draft = draft) -> Draft | Settled[None]:
            live = state.live if state else None
            if state is None or live is None or live.number != attempt or state.finished or step <= state.floor:
                return Settled(None)
            return draft

        try:
            entry = self.journal.append(derive, refresh=False)
        except history.Refused as problem:
            # no step may stay undecidable: what the fold refuses to commit is aborted, and says why
            refused = abort_draft(watch, step, Abort("refused", (), str(problem)))
            entry = self.journal.append(lambda state: derive(state, refused))
        if isinstance(entry, records.Commit):
            log.info("step %s is committed: slot %s, attempt %s", step, entry.slot, attempt)
        elif isinstance(entry, records.Abort):
            log.info("step %s is aborted (%s): %s", step, entry.reason, entry.detail)
        return entry

    # ------------------------------------------------------------------------------------- following the journal

    def _take(self) -> list[AnyEntry]:
        """The journal's entries that nobody was told of yet."""
        self._absorb(self.journal.take())
        told, self._kept = self._kept, []
        return told

    def _absorb(self, news: list[AnyEntry], *, ours: int | None = None) -> None:
        """Follow the journal: which attempt is watched, what is settled, what is to be sealed and swept."""
        self._kept = [*self._kept, *news]
        state = self.journal.state
        live = state.live if state and not state.finished else None
        if self._watch is not None and state is not None:
            superseded = live is None or self._watch.attempt.number != live.number
            decided = layout.STEP_LIMIT if superseded else state.floor
            self._sealer.sweep_later(self._watch.settle_below(decided))
            if superseded:
                self._watch = None
        for entry in news if self._started else news[-SEAL_BACK:]:
            self._sealer.seal_later(entry, ours=entry.slot == ours)
        self._started |= bool(news)
        if live is not None and state is not None and self._watch is None:
            self._watch = Watch(self._store, live, floor=state.floor, data=self._data, patience=self._patience)

    # ------------------------------------------------------------------------------------- a loop of polls

    def run(
        self,
        stop: threading.Event | None = None,
        *,
        until_finished: bool = True,
        on_poll: Callable[[Poll], None] | None = None,
    ) -> None:
        """Poll until `stop` is set, or the run is finished; `on_poll` is told of every poll. Store errors are logged
        and outlived; a corrupt journal or record, refused credentials and an unsuited store are raised."""
        pause = POLL_FASTEST_S
        while stop is None or not stop.is_set():
            try:
                poll = self.poll()
                if on_poll is not None:
                    on_poll(poll)
                self.tell(poll)
            except (StoreError, CommitUnknown) as problem:
                if isinstance(problem, StoreError) and not problem.retryable:
                    raise
                log.warning("tallymark driver: the store does not answer; trying on: %s", problem)
                poll = Poll((), False)
            if until_finished and self.journal.state and self.journal.state.finished and not poll.moved:
                return
            slowest = POLL_SLOWEST_S if poll.step is None else POLL_OPEN_S
            pause = POLL_FASTEST_S if poll.moved else min(slowest, pause * 1.5)
            self._nudge.wait(pause)
            if self._nudge.is_set():
                self._nudge.clear()
                pause = POLL_FASTEST_S

    def nudge(self) -> None:
        """Make a running loop poll at once. Safe from any thread."""
        self._nudge.set()

    def tell(self, poll: Poll) -> None:
        """Log the missing ranks and their hosts, at most once in TELL_EVERY_S."""
        now = self._patience.clock()
        if poll.moved or not poll.waiting_for or self._watch is None:
            self._told = max(self._told, now - TELL_EVERY_S + 5) if poll.moved else self._told
            return
        if now - self._told < TELL_EVERY_S:
            return
        self._told = now
        log.warning("step %s is open%s", poll.step, self.who_is_missing())

    def who_is_missing(self) -> str:
        """The missing ranks of the lowest open step with their hosts, for a message; "" if none is known."""
        watch = self._watch
        if watch is None or not watch.steps:
            return ""
        ranks = barrier.missing(watch.observation(min(watch.steps)))
        hosts = watch.read_hosts(ranks[:8])
        names = ", ".join(f"rank {rank} ({host or 'not seated'})" for rank, host in hosts.items())
        more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
        return f", waiting for {names}{more}" if names else ""
