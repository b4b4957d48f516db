"""The reader: what a run holds, for resuming, evaluation and people. It believes the journal only.

Rules a change must keep:
- A reader writes nothing.
- An open step is never shown as a checkpoint, however complete its files look.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tallymark import barrier
from tallymark.adopted import opener
from tallymark.checkpoint import Manifest
from tallymark.errors import InvalidInput, RecordError
from tallymark.history import State
from tallymark.journal import Journal
from tallymark.layout import check_step
from tallymark.observe import Watch
from tallymark.records import AnyEntry, Commit, Head
from tallymark.register import Patience
from tallymark.store.open import open_store

HOSTS_READ = 64


@dataclass(frozen=True, slots=True)
class OpenStepStatus:
    """An undecided step: the ranks that reported it, and the hosts of the first that did not ("" if unknown)."""

    step: int
    reported: tuple[int, ...]
    missing: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Status:
    """A run at a glance. `head` is None before the first attempt was begun."""

    url: str
    head: Head | None
    world_size: int
    open_steps: tuple[OpenStepStatus, ...]
    left: tuple[int, ...]


class Run:
    """A run, read only. Made by `tallymark.open`. Not for use by two threads at once."""

    def __init__(
        self,
        url: str | os.PathLike[str] | None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        store: Any = None,
    ) -> None:
        self._store = open_store(url, storage_options=storage_options, store=store)
        self._open_data = opener(storage_options)
        self._patience = Patience()
        self._journal = Journal(self._store, patience=self._patience)
        self._entries: dict[int, AnyEntry] = {}

    @property
    def url(self) -> str:
        """Where the run lies, without credentials."""
        return self._store.url

    def latest(self) -> Manifest | None:
        """The newest commit with a checkpoint in the live lineage, or None. Four small reads while the hint is fresh.

        Raises StoreError, RecordError.
        """
        try:
            tip = self._journal.tip()
        except RecordError:
            self._replay()  # the last slot cannot be believed: raises, unless a repair has voided it
            raise
        point = tip.head.checkpoint if tip is not None else None
        if point is None:
            return None
        entry = self._journal.read(point.slot)
        if not isinstance(entry, Commit):
            raise RecordError(f"slot {point.slot} is no commit, though the journal's head says so")
        return self._manifest(entry)

    def at(self, step: int) -> Manifest:
        """The commit of a step in the live lineage. Raises InvalidInput, naming the steps there are."""
        number = check_step(step)
        history = self.history()
        found = [manifest for manifest in history if manifest.step == number]
        if not found:
            if self._journal.state is None:
                raise InvalidInput(f"there is no run at {self.url} yet")
            steps = ", ".join(str(manifest.step) for manifest in history[-8:]) or "none"
            raise InvalidInput(f"step {number} is not committed in the live lineage; the newest are: {steps}")
        return found[-1]

    def history(self) -> list[Manifest]:
        """The live (not retired) commits of the lineage, metrics-only ones too, in ascending order of steps."""
        state = self._replay()
        if state is None:
            return []
        return [self._manifest(self._commit(fact.slot)) for fact in state.lineage() if not fact.retired]

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self.history())

    def entries(self) -> list[AnyEntry]:
        """Every entry of the journal, checked, in order: attempts, commits, aborts and all."""
        self._replay()
        return [self._entries[slot] for slot in sorted(self._entries)]

    def status(self) -> Status:
        """Where the run stands, and who is missing at its open steps. Lists markers and seats once."""
        state = self._replay()
        live = state.live if state else None
        if state is None or live is None or state.finished is not None:
            return Status(self.url, state.head if state else None, live.world_size if live else 0, (), ())
        watch = Watch(self._store, live, floor=state.floor, data=self._open_data, patience=self._patience)
        watch.list_members()
        watch.list_markers()
        steps = []
        for step in sorted(watch.steps):
            missing = barrier.missing(watch.observation(step))
            absent = set(missing)
            reported = tuple(rank for rank in range(live.world_size) if rank not in absent)
            hosts = {**dict.fromkeys(missing, ""), **watch.read_hosts(missing[:HOSTS_READ])}
            steps.append(OpenStepStatus(step, reported, hosts))
        return Status(self.url, state.head, live.world_size, tuple(steps), tuple(sorted(watch.farewells)))

    def _replay(self) -> State | None:
        self._journal.refresh()
        for entry in self._journal.take():
            self._entries[entry.slot] = entry
        return self._journal.state

    def _commit(self, slot: int) -> Commit:
        entry = self._entries[slot]
        assert isinstance(entry, Commit)  # the fold counts commits only
        return entry

    def _manifest(self, entry: Commit) -> Manifest:
        return Manifest.of(entry, self._store, self._open_data)

    def __repr__(self) -> str:
        return f"<Run {self.url}>"
