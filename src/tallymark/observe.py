"""What a driver has seen of the open steps of one attempt, and how it looks further.

This file alone turns listings and reads into the barrier's observations. Rules a change must keep:

- A moment is taken before a listing begins and after a fact is seen, so that "began after" is never claimed wrongly.
- A listing that fails is repeated whole; nothing is concluded from a part of one.
- The world size is the attempt entry's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tallymark import inventory, layout, records
from tallymark.barrier import Leave, Listing, Look, Observation
from tallymark.errors import InvalidInput, RecordError, StoreError
from tallymark.history import AttemptFact
from tallymark.layout import MarkerName
from tallymark.parallel import each, gather
from tallymark.records import Marker
from tallymark.register import Patience, read_all, retrying
from tallymark.store.port import RunStore

log = logging.getLogger("tallymark")


@dataclass(slots=True)
class OpenStep:
    """What was seen of one undecided step. `progress`: the moment of its newest marker. `deadline`: found passed.
    `tally` is the digest of the newest tally that was written, and `tallied` how many markers it names."""

    progress: float
    markers: dict[MarkerName, float] = field(default_factory=dict)
    deadline: float | None = None
    tally: str = ""
    tallied: int = 0
    bodies: dict[str, Marker | None] = field(default_factory=dict)
    data: dict[str, Listing] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


class Watch:
    """The open steps of one attempt, as one driver sees them."""

    def __init__(
        self,
        store: RunStore,
        attempt: AttemptFact,
        *,
        floor: int,
        data: Callable[[str], RunStore],
        patience: Patience,
    ) -> None:
        self.attempt = attempt
        self.floor = floor
        self.steps: dict[int, OpenStep] = {}
        self.farewells: dict[int, Leave] = {}
        self.hosts: dict[int, str] = {}
        self._store = store
        self._data = data
        self._patience = patience
        self._moment = patience.clock
        self._seats: dict[int, set[str]] = {}
        self._words: dict[int, str] = {}
        self._listed: float | None = None
        self._lower: dict[int, float] = {}

    # ------------------------------------------------------------------------------------- looking

    def list_markers(self, below: int | None = None) -> int:
        """List the markers of all open steps, or of those below a step; how many were new."""
        began = self._moment()
        new = retrying(lambda: self._list(below), self._patience)
        if below is None:
            self._listed = began
        else:
            self._lower[below] = began
        return new

    def _list(self, below: int | None) -> int:
        prefix = layout.markers_prefix(self.attempt.number)
        after = layout.markers_after(self.attempt.number, self.floor) if self.floor >= 0 else ""
        new = 0
        for key, _ in self._store.list(prefix, after):
            parsed = layout.parse_marker(key)
            if parsed is None:
                continue  # a stranger: not ours to judge
            step, name = parsed
            if below is not None and step >= below:
                if self._store.lists_in_order:
                    break
                continue
            if step > self.floor:
                new += self._note(step, name)
        return new

    def _note(self, step: int, name: MarkerName) -> int:
        known = self.steps.get(step)
        if known is not None and name in known.markers:
            return 0
        now = self._moment()
        if known is None:
            known = self.steps[step] = OpenStep(progress=now)
        known.markers[name] = known.progress = now
        known.deadline = None
        return 1

    def list_members(self) -> None:
        """List the seats and farewells of the attempt, and read the farewells that are new."""
        prefix = layout.members_prefix(self.attempt.number)
        keys = retrying(lambda: [key for key, _ in self._store.list(prefix)], self._patience)
        fresh: list[str] = []
        for key in keys:
            member = layout.parse_member(key)
            if member is None or member.rank >= self.attempt.world_size:
                continue
            if not member.left:
                self._seats.setdefault(member.rank, set()).add(key)
            elif member.rank not in self.farewells:
                fresh.append(key)
        for key, body in zip(fresh, read_all(self._store, fresh, self._patience), strict=True):
            if body is not None:
                self._hear_farewell(key, body)

    def _hear_farewell(self, key: str, body: bytes) -> None:
        """Take in a farewell. One that cannot be believed is told of and passed over: it could only hasten an abort."""
        try:
            farewell = records.decode(body, records.Farewell, f"the farewell {key}")
        except RecordError as problem:
            log.warning("%s", problem)
            return
        if key == layout.farewell_key(farewell.attempt, farewell.rank, farewell.nonce):
            self.farewells[farewell.rank] = Leave(farewell.last_step, self._moment())
            self._words[farewell.rank] = farewell.why

    def read_hosts(self, ranks: tuple[int, ...]) -> dict[int, str]:
        """The hosts of these ranks, from their seats; "" where nobody sat down. A rank that several processes claimed
        has several: who was refused leaves a seat too.
        """
        unknown = [rank for rank in ranks if rank not in self.hosts]
        if any(rank not in self._seats for rank in unknown):
            self.list_members()
        keys = sorted(key for rank in unknown for key in self._seats.get(rank, ()))
        found: dict[int, set[str]] = {}
        for key, body in zip(keys, read_all(self._store, keys, self._patience), strict=True):
            if body is not None:
                with contextlib.suppress(RecordError):  # for people alone: a damaged seat decides nothing
                    seat = records.decode(body, records.Seat, f"the seat {key}")
                    found.setdefault(seat.rank, set()).add(seat.host)
        self.hosts.update((rank, " or ".join(sorted(hosts))) for rank, hosts in found.items())
        return {rank: self.hosts.get(rank, "") for rank in ranks}

    def last_words(self, rank: int) -> str:
        """Why a rank left, as its farewell says; "" if it has not."""
        return self._words.get(rank, "")

    def fetch(self, step: int, look: Look, *also: Callable[[], object]) -> None:
        """Fetch what a verdict asked for, side by side, with whatever else the caller wants done meanwhile."""
        seen = self.steps[step]
        calls: list[Callable[[], object]] = list(also)
        if look.listing:
            calls.append(self.list_markers)
        elif look.lower:
            calls.append(partial(self.list_markers, below=step))
        calls.extend(partial(self._read_body, step, seen, name) for name in look.bodies)
        if look.data is not None:
            calls.append(partial(self._list_data, seen, look.data))
        calls.extend(partial(self._look_at, step, seen, file) for file in look.files)
        gather(calls)

    def read_bodies(self, step: int, names: tuple[MarkerName, ...]) -> dict[MarkerName, Marker]:
        """The bodies of these markers, as far as they can be read: for telling a person, not for deciding."""
        seen = self.steps[step]
        each(partial(self._read_body, step, seen), names)
        return {name: body for name in names if (body := seen.bodies.get(name.digest)) is not None}

    def _read_body(self, step: int, seen: OpenStep, name: MarkerName) -> None:
        if name.digest in seen.bodies:
            return
        key = layout.marker_key(self.attempt.number, step, name)
        body = retrying(lambda: self._store.read(key), self._patience)
        if body is None:
            return  # swept: somebody has decided the step, which the journal will tell
        try:
            seen.bodies[name.digest] = inventory.decode_marker(body, name, self.attempt.number, step)
        except RecordError:
            seen.bodies[name.digest] = None

    def _list_data(self, seen: OpenStep, path: str) -> None:
        began = self._moment()
        try:
            store, prefix = self._place(path)
            files = retrying(lambda: {key[len(prefix) :]: size for key, size in store.list(prefix)}, self._patience)
        except (InvalidInput, StoreError) as problem:
            if not is_adopted(path):
                raise
            self._cannot_read(seen, path, problem)
            return
        if not files and is_adopted(path) and path.startswith("/") and not Path(path).is_dir():
            self._cannot_read(seen, path, FileNotFoundError(f"there is no folder {path!r} on this host"))
            return
        seen.data[path] = Listing(began, files)

    def _cannot_read(self, seen: OpenStep, path: str, problem: Exception) -> None:
        """Adopted data that this host may not or cannot look at: no evidence of anything. Another driver may."""
        if path not in seen.unreadable:
            log.warning("the adopted checkpoint %s cannot be looked at from here: %s", path, problem)
        seen.unreadable[path] = str(problem)

    def _look_at(self, step: int, seen: OpenStep, file: str) -> None:
        lead = min(name for name in seen.markers if name.status == "saved")
        body = seen.bodies[lead.digest]
        assert body is not None and body.path is not None  # the verdict that asked for files had read it
        store, prefix = self._place(body.path)
        try:
            seen.sizes[file] = retrying(lambda: store.size(prefix + file), self._patience)
        except StoreError as problem:
            if not is_adopted(body.path):
                raise
            self._cannot_read(seen, body.path, problem)

    def _place(self, path: str) -> tuple[RunStore, str]:
        return (self._data(path), "") if is_adopted(path) else (self._store, path)

    # ------------------------------------------------------------------------------------- what it amounts to

    def observation(self, step: int) -> Observation:
        """All that is known of a step, for the barrier."""
        seen = self.steps[step]
        return Observation(
            world_size=self.attempt.world_size,
            step=step,
            own_path=layout.checkpoint_prefix(step, self.attempt.number),
            markers=seen.markers,
            later=self._later(step),
            farewells=self.farewells,
            deadline=seen.deadline,
            listed=self._listed,
            lower=max((m for m in (self._lower.get(step), self._listed) if m is not None), default=None),
            delay_s=self._store.visibility_delay_s,
            data=seen.data,
            bodies=seen.bodies,
            sizes=seen.sizes,
            unreadable=seen.unreadable,
        )

    def _later(self, step: int) -> dict[int, float]:
        later: dict[int, float] = {}
        for other, seen in self.steps.items():
            if other > step:
                for name, moment in seen.markers.items():
                    for rank in range(name.first, name.last + 1):
                        later[rank] = min(moment, later.get(rank, moment))
        return later

    def check_deadlines(self) -> None:
        """Note, for each open step, whether nothing moved for longer than the attempt allows."""
        now = self._moment()
        for seen in self.steps.values():
            if seen.deadline is None and now - seen.progress > self.attempt.barrier_timeout_s:
                seen.deadline = now

    def give_up(self, step: int, look: Look) -> bool:
        """No further look can help, and the step's time is over: count what a look never finds. False if it found all.

        A marker that is listed and reads as absent is damaged (or swept: then the journal refuses our decision).
        """
        seen = self.steps[step]
        gone = [name for name in look.bodies if name.digest not in seen.bodies]
        seen.bodies.update(dict.fromkeys((name.digest for name in gone), None))
        late = bool(seen.unreadable) and seen.deadline is None
        if late:
            seen.deadline = self._moment()
        return bool(gone) or late

    def settle_below(self, floor: int) -> list[str]:
        """Forget the steps that are decided; the keys of their markers, for the sweep."""
        self.floor = max(self.floor, floor)
        gone = [step for step in self.steps if step <= self.floor]
        self._lower = {step: moment for step, moment in self._lower.items() if step > self.floor}
        return [
            layout.marker_key(self.attempt.number, step, name) for step in gone for name in self.steps.pop(step).markers
        ]


def is_adopted(path: str) -> bool:
    """Whether a recorded checkpoint path lies outside the run's own step folders."""
    return "://" in path or path.startswith("/")
