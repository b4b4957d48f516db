"""Sealing and sweeping, off the critical path: what is done about a step after the journal has decided it.

Rules a change must keep:
- Nothing is deleted before the journal has decided the step; markers of a commit not before its inventory was read
  back from the store.
- Sealing follows from the journal and the tally alone, so anyone may do it, twice, or die in it.
- A failure here never harms a commit: it is told, and done again later.
"""

from __future__ import annotations

import logging

from tallymark import inventory, layout, records
from tallymark.errors import RecordError, StoreError
from tallymark.records import Abort, AnyEntry, Commit
from tallymark.register import Patience, retrying
from tallymark.store.port import RunStore

log = logging.getLogger("tallymark")
BATCH = 1000
OTHERS_KEPT = 64
OTHERS_AFTER_S = 10.0
"""How long another driver's commit is left to that driver to seal. Politeness only: sealing twice is harmless."""


def is_sealed(store: RunStore, commit: Commit, patience: Patience) -> bool:
    """Whether the commit's inventory stands beside its data. A commit without a checkpoint needs none."""
    key = layout.inventory_key(commit.step, commit.attempt)
    return commit.checkpoint is None or retrying(lambda: store.size(key), patience) is not None


def seal(store: RunStore, commit: Commit, patience: Patience) -> None:
    """Write a copy of the manifest and the inventory beside the data, and read the inventory back.

    The inventory is the seal, and comes last: who finds it need not look for the manifest.
    """
    if commit.checkpoint is None:
        return
    markers = inventory.read_tally(store, commit, patience)
    if markers is None:
        if is_sealed(store, commit, patience):
            return
        raise RecordError(
            f"step {commit.step} cannot be sealed: it has neither all markers of its tally nor an inventory"
        )
    body = inventory.encode(commit, inventory.collect(markers))
    key = layout.inventory_key(commit.step, commit.attempt)
    manifest = layout.manifest_key(commit.step, commit.attempt)
    retrying(lambda: store.put(manifest, records.canonical(commit)), patience)
    retrying(lambda: store.put(key, body), patience)
    found = retrying(lambda: store.read(key), patience)
    if found != body:
        raise StoreError(f"{key} does not read back as it was written", key=key, retryable=True)


class Sealer:
    """What one driver still has to seal and to sweep."""

    def __init__(self, store: RunStore, patience: Patience) -> None:
        self._store = store
        self._patience = patience
        self._waiting: dict[int, tuple[Commit | Abort, float | None]] = {}
        self._decided: list[str] = []
        self._kept: set[str] = set()
        self._rest_until = float("-inf")

    def seal_later(self, entry: AnyEntry, *, ours: bool) -> None:
        """Remember a commit to seal, another driver's abort to sweep; what is theirs is left to them for a while."""
        if isinstance(entry, records.Retire):
            for slot in entry.slots:
                self._waiting.pop(slot, None)
        if isinstance(entry, Commit) or (isinstance(entry, Abort) and not ours):
            due = None if ours else self._patience.clock() + OTHERS_AFTER_S
            self._waiting[entry.slot] = (entry, due)
            others = [slot for slot, (_, due) in self._waiting.items() if due is not None]
            for slot in others[:-OTHERS_KEPT]:
                self._forget(slot)

    def _forget(self, slot: int) -> None:
        """Leave a commit to others; with its markers, since it may not be sealed."""
        entry, _ = self._waiting.pop(slot)
        prefix = layout.markers_prefix(entry.attempt, entry.step)
        self._decided = [key for key in self._decided if not key.startswith(prefix)]

    def sweep_later(self, keys: list[str]) -> None:
        """Remember markers of decided steps."""
        self._decided.extend(keys)

    def work(self) -> None:
        """Seal what is due, then sweep what is decided and sealed. Never raises for the store's sake: what fails is
        told, and left alone for a while."""
        now = self._patience.clock()
        if now < self._rest_until:
            return
        try:
            for slot, (entry, due) in list(self._waiting.items()):
                if due is None or due <= now:
                    self._settle(entry, ours=due is None)
                    del self._waiting[slot]
            self._sweep()
        except StoreError as problem:
            log.warning("tallymark: sealing is put off: %s", problem)
            self._rest_until = now + OTHERS_AFTER_S

    def _settle(self, entry: Commit | Abort, *, ours: bool) -> None:
        """Seal a commit, unless another driver did. A commit that cannot be sealed keeps its markers, and holds up no
        other."""
        prefix = layout.markers_prefix(entry.attempt, entry.step)
        if isinstance(entry, Commit) and (ours or not is_sealed(self._store, entry, self._patience)):
            try:
                seal(self._store, entry, self._patience)
            except RecordError as problem:
                log.warning("tallymark: step %s stays unsealed: %s", entry.step, problem)
                self._kept.add(prefix)
        if not ours:
            self._decided.extend(key for key, _ in self._store.list(prefix))

    def _sweep(self) -> None:
        """Delete the markers of decided steps, but those that an unsealed commit still needs."""
        needed = {layout.markers_prefix(entry.attempt, entry.step) for entry, _ in self._waiting.values()} | self._kept
        ready = [key for key in dict.fromkeys(self._decided) if key.rpartition("/")[0] + "/" not in needed]
        for start in range(0, len(ready), BATCH):
            for key, why in self._store.delete(ready[start : start + BATCH]):
                log.warning("tallymark: %s could not be deleted, and stays: %s", key, why)
        self._decided = [key for key in self._decided if key.rpartition("/")[0] + "/" in needed]
