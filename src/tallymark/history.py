"""History is a fold: what the journal's entries, in order, amount to.

`apply(state, entry, digest) -> state` is pure, and the only place that says what is valid. A driver, a waiting worker,
a reader, and the conformance vectors use it. It checks facts of the journal and nothing else.

Rules a change must keep (the table of `docs/spec/journal.md`):
- Slots are dense, and each entry carries the sha256 of the bytes in the slot before it.
- Every entry's `head` is exactly what the fold makes of the entries so far.
- Per attempt, decided steps ascend. Only the live attempt decides. A decision settles every lower step.
- What protects data from deletion is checked here, so that no policy can get it wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tallymark import layout, records
from tallymark.errors import RecordError
from tallymark.records import Base, Head, Point


class Refused(RecordError):
    """The entry is not valid after the entries before it. `rule` is a short, stable word for why."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{message} [{rule}]")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class CommitFact:
    """What the fold remembers of a commit."""

    slot: int
    step: int
    attempt: int
    saved: bool
    retired: bool = False
    pins: frozenset[str] = frozenset()

    @property
    def point(self) -> Point:
        return Point(slot=self.slot, step=self.step, attempt=self.attempt)


@dataclass(frozen=True, slots=True)
class AttemptFact:
    """What the fold remembers of an attempt."""

    number: int
    slot: int
    launch_id: str
    world_size: int
    barrier_timeout_s: float
    resume: str | int
    base: Base | None


@dataclass(frozen=True, slots=True)
class State:
    """The journal up to and without `next_slot`. Immutable.

    `checkpoint` and `report`: newest commit with a checkpoint, and newest commit, of the lineage within this run.
    `before`: newest checkpoint of the lineage that the live attempt left behind; protected until it has one itself.
    `passed_over`: damaged slots (slot -> sha256) that a later void entry must name.
    """

    run_id: str
    registers: str
    next_slot: int
    digest: str
    attempts: tuple[AttemptFact, ...] = ()
    commits: Mapping[int, CommitFact] = field(default_factory=dict)
    last_decided: int | None = None
    checkpoint: Point | None = None
    report: Point | None = None
    before: Point | None = None
    finished: str | None = None
    aborts: int = 0
    retired: int = 0
    passed_over: Mapping[int, str] = field(default_factory=dict)

    @property
    def live(self) -> AttemptFact | None:
        """The live attempt, or None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def floor(self) -> int:
        """The highest step that the live attempt may no longer decide; -1 if it may decide any."""
        live = self.live
        base = live.base.step if live and live.base else -1
        return base if self.last_decided is None else max(base, self.last_decided)

    @property
    def newest(self) -> Base | None:
        """The newest checkpoint of the lineage, as a base for the next attempt; it may lie in another run."""
        if self.checkpoint is not None:
            return Base(slot=self.checkpoint.slot, step=self.checkpoint.step)
        return self.live.base if self.live else None

    @property
    def head(self) -> Head:
        """The state in short, as entries carry it."""
        live = self.live
        return Head(
            attempt=live.number if live else 0,
            attempt_slot=live.slot if live else None,
            base=live.base if live else None,
            checkpoint=self.checkpoint,
            report=self.report,
            finished=self.finished,
            attempts=len(self.attempts),
            commits=len(self.commits),
            aborts=self.aborts,
            retired=self.retired,
        )

    def attempt_of(self, launch_id: str) -> AttemptFact | None:
        """The attempt that this launch was admitted as."""
        return next((fact for fact in reversed(self.attempts) if fact.launch_id == launch_id), None)

    def lineage(self) -> list[CommitFact]:
        """The commits that the live attempt builds on, its own included, in ascending order of steps."""
        found: list[CommitFact] = []
        by_attempt: dict[int, list[CommitFact]] = {}
        for fact in self.commits.values():
            by_attempt.setdefault(fact.attempt, []).append(fact)
        live = self.live
        attempt, last = (live.number if live else 0), self.next_slot
        while attempt:
            found.extend(fact for fact in reversed(by_attempt.get(attempt, [])) if fact.slot <= last)
            base = self.attempts[attempt - 1].base
            if base is None or base.run_id is not None:
                break
            attempt, last = self.commits[base.slot].attempt, base.slot
        return found[::-1]


def begin(entry: records.Genesis) -> State:
    """The state after slot 0, without its digest and head checked."""
    if entry.slot != 0 or entry.prev is not None or entry.attempt != 0:
        raise Refused("genesis-first", "a genesis entry stands in slot 0 and has no entry before it")
    if entry.registers not in ("create", "ballots"):
        raise Refused("registers-known", f"registers are decided by {entry.registers!r}, which nobody knows")
    return State(run_id=entry.run_id, registers=entry.registers, next_slot=1, digest="")


def advance(state: State | None, entry: records.AnyEntry) -> State:
    """The state after `entry`, by the rules of its kind alone: `digest` is not yet set, `head` not compared.

    For whoever composes an entry: `advance(state, draft).head` is the head that it must carry. Raises Refused.
    """
    if state is None:
        if not isinstance(entry, records.Genesis):
            raise Refused("genesis-first", f"slot 0 holds a {type(entry).__name__.lower()} entry, not a genesis")
        return begin(entry)
    after = _by_kind(state, entry)
    live = after.live
    if not isinstance(entry, records.Attempt) and entry.attempt != (live.number if live else 0):
        raise Refused("attempt-live", f"slot {entry.slot} speaks for attempt {entry.attempt}, which is not live")
    return replace(after, next_slot=state.next_slot + 1)


def _by_kind(state: State, entry: records.AnyEntry) -> State:
    match entry:
        case records.Genesis():
            raise Refused("genesis-first", f"a second genesis in slot {entry.slot}")
        case records.Attempt():
            return _attempt(state, entry)
        case records.Commit():
            return _commit(state, entry)
        case records.Abort():
            return _abort(state, entry)
        case records.Finish():
            _require_live(state, entry)
            return replace(state, finished=entry.status)
        case records.Retire():
            return _retire(state, entry)
        case records.Pin() | records.Unpin() | records.Annotate():
            return _note(state, entry)
        case records.Void():
            return _void(state, entry)


def apply(state: State | None, entry: records.AnyEntry, digest: str) -> State:
    """The state after `entry`, or Refused. `digest` is the sha256 of the entry's bytes as they lie in the slot."""
    expected_slot, expected_prev = (0, None) if state is None else (state.next_slot, state.digest)
    if entry.slot != expected_slot:
        raise Refused("slot-dense", f"the entry in slot {expected_slot} says that it is slot {entry.slot}")
    if entry.prev != expected_prev:
        raise Refused("chain", f"slot {entry.slot} does not follow from the bytes of the slot before it")
    if state is not None and entry.run_id != state.run_id:
        raise Refused("run", f"slot {entry.slot} belongs to run {entry.run_id}, not {state.run_id}")
    after = advance(state, entry)
    if entry.head != after.head:
        raise Refused("head", f"slot {entry.slot} carries a head that does not follow from the entries before it")
    return replace(after, digest=digest)


def pass_over(state: State, digest: str) -> State:
    """Skip the damaged slot `state.next_slot`, whose bytes have this sha256, because a later void entry says so."""
    passed = {**state.passed_over, state.next_slot: digest}
    return replace(state, next_slot=state.next_slot + 1, digest=digest, passed_over=passed)


def _attempt(state: State, entry: records.Attempt) -> State:
    live = state.live
    if entry.attempt != len(state.attempts) + 1:
        raise Refused("attempt-next", f"attempt {entry.attempt} does not follow attempt {len(state.attempts)}")
    if state.attempt_of(entry.launch_id) is not None:
        raise Refused("launch-new", f"launch id {entry.launch_id!r} was used before")
    base = entry.base
    commit = None
    if base is not None and ((base.run_id is None) != (base.run_url is None) or base.run_id == state.run_id):
        raise Refused("base-live", "a base in another run says its url and its run id; one in this run says neither")
    if base is not None and base.run_id is None:
        commit = state.commits.get(base.slot)
        if commit is None or commit.retired or not commit.saved or commit.step != base.step:
            raise Refused("base-live", f"the base, slot {base.slot}, is not a live commit with a checkpoint")
    if entry.resume in ("auto", "must") and base != state.newest:
        raise Refused("base-newest", "the base is not the newest checkpoint of the lineage")
    if (entry.resume == "must" and base is None) or (entry.resume == "never" and base is not None):
        raise Refused("base-resume", f"resume={entry.resume!r} does not allow this base")
    if isinstance(entry.resume, int) and (base is None or base.step != entry.resume):
        raise Refused("base-resume", f"resume={entry.resume} asks for a base at that step")
    if isinstance(entry.resume, str) and entry.resume not in ("auto", "must", "never"):
        raise Refused("base-resume", f"resume={entry.resume!r} is no policy")
    fact = AttemptFact(
        number=entry.attempt,
        slot=entry.slot,
        launch_id=entry.launch_id,
        world_size=entry.world_size,
        barrier_timeout_s=entry.barrier_timeout_s,
        resume=entry.resume,
        base=base,
    )
    point = commit.point if commit else None
    before = state.checkpoint or (state.before if live else None)
    return replace(
        state,
        attempts=(*state.attempts, fact),
        last_decided=None,
        checkpoint=point,
        report=point,
        before=before,
        finished=None,
    )


def _require_live(state: State, entry: records.Commit | records.Abort | records.Finish) -> AttemptFact:
    live = state.live
    if live is None or entry.attempt != live.number:
        raise Refused(
            "attempt-live", f"attempt {entry.attempt} is not the live one ({live.number if live else 'none'})"
        )
    if state.finished is not None:
        raise Refused("finished", f"attempt {entry.attempt} is finished ({state.finished})")
    return live


def _require_step(state: State, entry: records.Commit | records.Abort) -> AttemptFact:
    live = _require_live(state, entry)
    if entry.step <= state.floor:
        raise Refused("step-ascends", f"step {entry.step} does not lie above step {state.floor}, which is settled")
    return live


def _commit(state: State, entry: records.Commit) -> State:
    live = _require_step(state, entry)
    if entry.reporting_ranks != ((0, live.world_size - 1),):
        raise Refused("ranks-all", f"step {entry.step} is committed without the word of all {live.world_size} ranks")
    saved = entry.checkpoint
    if saved is not None:
        if not _are_ranges(saved.ranks):
            raise Refused("ranks-contributing", "the contributing ranks are no ascending, disjoint ranges")
        if saved.ranks[-1][1] >= live.world_size:
            raise Refused("ranks-contributing", f"rank {saved.ranks[-1][1]} is none of {live.world_size} ranks")
        if not saved.adopted and saved.path != layout.checkpoint_prefix(entry.step, entry.attempt):
            raise Refused("path-own", f"{saved.path!r} is not where attempt {entry.attempt} saves step {entry.step}")
    fact = CommitFact(slot=entry.slot, step=entry.step, attempt=entry.attempt, saved=saved is not None)
    return replace(
        state,
        commits={**state.commits, entry.slot: fact},
        last_decided=entry.step,
        report=fact.point,
        checkpoint=fact.point if fact.saved else state.checkpoint,
        before=None if fact.saved else state.before,
    )


def _are_ranges(ranges: records.Ranges) -> bool:
    """Whether these are ranges as `to_ranges` makes them, at least one; told without counting ranks one by one."""
    gaps = all(after[0] > before[1] + 1 for before, after in pairwise(ranges))
    return bool(ranges) and gaps and all(first <= last for first, last in ranges)


def _abort(state: State, entry: records.Abort) -> State:
    _require_step(state, entry)
    return replace(state, last_decided=entry.step, aborts=state.aborts + 1)


def _retire(state: State, entry: records.Retire) -> State:
    if not entry.slots or len(set(entry.slots)) != len(entry.slots):
        raise Refused("retire-some", "a retire entry names each slot once, and at least one")
    commits = dict(state.commits)
    for slot in entry.slots:
        fact = _live_commit(state, slot)
        if why := protection(state, slot):
            raise Refused("protected", f"slot {slot} (step {fact.step}) is {why}")
        commits[slot] = replace(fact, retired=True)
    return replace(state, commits=commits, retired=state.retired + len(entry.slots))


def protection(state: State, slot: int) -> str:
    """Why the commit in `slot` may not be retired now; "" if it may."""
    fact = state.commits[slot]
    live = state.live
    if state.checkpoint is not None and slot == state.checkpoint.slot:
        return "the newest checkpoint of the lineage"
    if fact.pins:
        return f"pinned ({', '.join(sorted(fact.pins))})"
    unproven = live is not None and not (state.checkpoint and state.checkpoint.attempt == live.number)
    if unproven and live and live.base and live.base.run_id is None and live.base.slot == slot:
        return "the base of the live attempt"
    if unproven and state.before is not None and state.before.slot == slot:
        return "the newest checkpoint before the live attempt"
    return ""


def _note(state: State, entry: records.Pin | records.Unpin | records.Annotate) -> State:
    fact = _live_commit(state, entry.commit_slot)
    if isinstance(entry, records.Annotate):
        return state
    if isinstance(entry, records.Unpin) and entry.name not in fact.pins:
        raise Refused("pin-known", f"slot {fact.slot} is not pinned as {entry.name!r}")
    pins = fact.pins | {entry.name} if isinstance(entry, records.Pin) else fact.pins - {entry.name}
    return replace(state, commits={**state.commits, fact.slot: replace(fact, pins=pins)})


def _void(state: State, entry: records.Void) -> State:
    if state.passed_over.get(entry.void_slot) != entry.void_sha256:
        raise Refused("void-damaged", f"slot {entry.void_slot} is no damaged slot with that sha256")
    return state


def _live_commit(state: State, slot: int) -> CommitFact:
    fact = state.commits.get(slot)
    if fact is None or fact.retired:
        raise Refused("commit-live", f"slot {slot} is not a live commit")
    return fact
