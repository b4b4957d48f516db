"""History: the vectors, what nobody may smuggle in, and the fold against a naive model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark import history, layout, records
from tallymark.errors import RecordError
from tallymark.history import Refused, State
from tallymark.records import AnyEntry, Base

ROOT = Path(__file__).resolve().parents[1]
VECTORS = json.loads((ROOT / "conformance" / "vectors" / "history.json").read_text("utf-8"))["cases"]
SOUND = [case for case in VECTORS if "refused" not in case["expected"]]
RUN = "0" * 31 + "1"


def bytes_of(entry: dict[str, Any]) -> bytes:
    """The bytes of a slot, as the vectors' page says, without the library."""
    if "damaged_bytes" in entry:
        return entry["damaged_bytes"].encode()
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def taken(state: State | None, entry: dict[str, Any], slot: int) -> State:
    body = bytes_of(entry)
    if "damaged_bytes" in entry:
        assert state is not None
        return history.pass_over(state, records.sha256(body))
    return history.apply(state, records.decode_entry(body, slot), records.sha256(body))


def replayed(entries: list[dict[str, Any]]) -> State | None:
    state: State | None = None
    for slot, entry in enumerate(entries):
        state = taken(state, entry, slot)
    return state


# ---- the vectors -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("J1", "J2", "J3", "J4", "J5", "J13", "J14", "J15", "J17", "J18", "J19", "J20", "J21", "J22", "B13")
@pytest.mark.parametrize("case", VECTORS, ids=[f"{case['rule']}-{case['name']!a}" for case in VECTORS])
def test_journals(case):
    *before, last = case["entries"]
    state = replayed(before)
    expected = case["expected"]
    if "refused" in expected:
        with pytest.raises(Refused) as problem:
            taken(state, last, len(before))
        assert problem.value.rule == expected["refused"]
        return
    state = taken(state, last, len(before))
    assert [fact.slot for fact in state.lineage()] == expected["lineage"]
    assert state.floor == expected["floor"]
    if "head" in last:
        assert msgspec.to_builtins(state.head) == last["head"]


def test_the_vectors_show_every_word_of_refusal():
    source = (ROOT / "src" / "tallymark" / "history.py").read_text("utf-8")
    words = set(re.findall(r'Refused\(\s*"([a-z-]+)"', source))
    assert len(words) > 15
    assert {case["expected"]["refused"] for case in VECTORS if "refused" in case["expected"]} == words


# ---- what nobody may smuggle in --------------------------------------------------------------------------------------

OTHER = {
    "attempt": 77, "attempt_slot": 0, "base": {"slot": 0, "step": 0, "run_url": None, "run_id": None},
    "checkpoint": {"slot": 0, "step": 3, "attempt": 9}, "report": {"slot": 0, "step": 3, "attempt": 9},
    "finished": "by nobody", "attempts": 99, "commits": 99, "aborts": 99, "retired": 99,
}  # fmt: skip


@pytest.mark.rule("J1", "J3", "J4", "J5")
@pytest.mark.parametrize("case", SOUND, ids=[ascii(case["name"]) for case in SOUND])
def test_no_entry_passes_with_another_slot_hash_run_or_head(case):
    *before, last = case["entries"]
    state = replayed(before)
    lies: list[tuple[str, dict[str, Any]]] = [
        ("slot-dense", {"slot": last["slot"] + 1}),
        ("slot-dense", {"slot": max(0, last["slot"] - 1) if last["slot"] else 5}),
        ("chain", {"prev": "a" * 64}),
        *((("chain", {"prev": None}), ("run", {"run_id": "f" * 16})) if state else ()),
        *(("head", {"head": last["head"] | {key: value}}) for key, value in OTHER.items()),
    ]
    for rule, lie in lies:
        with pytest.raises(Refused) as problem:
            taken(state, last | lie, len(before))
        assert problem.value.rule == rule
    assert taken(state, last, len(before)).next_slot == len(case["entries"])


@pytest.mark.rule("J3", "J5")
def test_a_changed_byte_anywhere_breaks_the_chain_behind_it():
    [case] = [case for case in SOUND if case["name"] == "a chain of three attempts"]
    for slot in range(len(case["entries"]) - 1):
        forged = [dict(entry) for entry in case["entries"]]
        forged[slot]["written_by"] += "!"
        with pytest.raises(Refused) as problem:
            replayed(forged)
        assert problem.value.rule == "chain"
        assert f"slot {slot + 1} " in str(problem.value)


@pytest.mark.rule("J6", "C10")
@pytest.mark.parametrize("case", SOUND, ids=[ascii(case["name"]) for case in SOUND])
def test_who_wrote_and_when_decides_nothing(case):
    plain = replayed(case["entries"])
    state: State | None = None
    for slot, entry in enumerate(case["entries"]):
        if "damaged_bytes" in entry:
            assert state is not None
            state = history.pass_over(state, records.sha256(bytes_of(entry)))
            continue
        told = {
            "wall_time": f"{9999 - slot}-01-01",
            "written_by": "",
            "nonce": "f" * 16,
            "prev": state.digest if state else None,
        }
        body = bytes_of(entry | told)
        state = history.apply(state, records.decode_entry(body, slot), records.sha256(body))
    assert plain is not None and state is not None
    assert msgspec.structs.asdict(state.head) == msgspec.structs.asdict(plain.head)
    assert (state.lineage(), state.commits, state.floor) == (plain.lineage(), plain.commits, plain.floor)


def test_a_refusal_is_a_record_error_and_leaves_the_state_alone():
    [case] = [case for case in VECTORS if case["name"] == "what is pinned"]
    state = replayed(case["entries"][:-1])
    assert state is not None
    before = (state.head, dict(state.commits), state.next_slot, state.digest)
    with pytest.raises(RecordError, match=r"pinned \(paper\).*\[protected\]"):
        taken(state, case["entries"][-1], state.next_slot)
    assert (state.head, dict(state.commits), state.next_slot, state.digest) == before


# ---- composing entries -----------------------------------------------------------------------------------------------

NO_HEAD = records.Head(
    attempt=0, attempt_slot=None, base=None, checkpoint=None, report=None,
    finished=None, attempts=0, commits=0, aborts=0, retired=0,
)  # fmt: skip


def compose(state: State | None, kind: type[AnyEntry], attempt: int, **fields: Any) -> AnyEntry:
    """An entry for the next slot, with the head that the fold gives it. Raises Refused."""
    draft = kind(
        run_id=RUN, slot=state.next_slot if state else 0, prev=state.digest if state else None, attempt=attempt,
        head=NO_HEAD, written_by="", nonce="0" * 16, wall_time="", **fields,
    )  # fmt: skip
    return msgspec.structs.replace(draft, head=history.advance(state, draft).head)


def grown(state: State | None, kind: type[AnyEntry], attempt: int, **fields: Any) -> State:
    """The state after one more entry, by way of its bytes."""
    body = records.canonical(compose(state, kind, attempt, **fields))
    return history.apply(state, records.decode_entry(body, state.next_slot if state else 0), records.sha256(body))


def attempt_fields(
    number: int, *, world_size: int = 2, resume: str | int = "auto", base: Base | None = None
) -> dict[str, Any]:
    return {
        "launch_id": f"launch-{number}", "world_size": world_size, "barrier_timeout_s": 60.0, "resume": resume,
        "base": base,
    }  # fmt: skip


def commit_fields(step: int, attempt: int, *, world_size: int = 2, saved: bool = True) -> dict[str, Any]:
    path = layout.checkpoint_prefix(step, attempt)
    checkpoint = records.Saved(path=path, adopted=False, kind="files", ranks=((0, world_size - 1),), files=1, bytes=1)
    return {
        "step": step, "checkpoint": checkpoint if saved else None, "reporting_ranks": ((0, world_size - 1),),
        "metrics": {}, "tally_digest": "0" * 64,
    }  # fmt: skip


ABORT = {"reason": "timeout", "ranks": ((1, 1),), "culprits": (), "detail": ""}


def test_a_wide_commit_is_judged_without_counting_its_ranks():
    state = grown(
        grown(None, records.Genesis, 0, registers="create"), records.Attempt, 1, **attempt_fields(1, world_size=10**6)
    )
    for step in range(300):  # counted rank by rank, this would take minutes
        draft = compose(state, records.Commit, 1, **commit_fields(step, 1, world_size=10**6))
        assert draft.head.commits == 1


# ---- a naive model ---------------------------------------------------------------------------------------------------


class Model:
    """What a run amounts to, kept as naively as can be: whole lists, walked every time."""

    def __init__(self) -> None:
        self.commits: dict[int, dict[str, Any]] = {}  # slot -> step, attempt, saved, retired, pins, lineage
        self.live = 0
        self.base: int | None = None
        self.lineage: list[int] = []
        self.left_behind: list[int] = []
        self.decided: list[int] = []
        self.finished = False

    def checkpoints(self, slots: list[int]) -> list[int]:
        return [slot for slot in slots if self.commits[slot]["saved"]]

    def newest(self) -> int | None:
        return self.checkpoints(self.lineage)[-1] if self.checkpoints(self.lineage) else None

    def open_step(self, step: int) -> bool:
        above = [*self.decided, *([self.commits[self.base]["step"]] if self.base is not None else [])]
        return self.live > 0 and not self.finished and all(step > other for other in above)

    def may_resume(self, resume: str | int, base: int | None) -> bool:
        if base is not None:
            fact = self.commits.get(base)
            if fact is None or fact["retired"] or not fact["saved"]:
                return False
        if resume == "auto":
            return base == self.newest()
        if resume == "must":
            return base is not None and base == self.newest()
        if resume == "never":
            return base is None
        return base is not None and self.commits[base]["step"] == resume

    def may_retire(self, slot: int) -> bool:
        fact = self.commits.get(slot)
        if fact is None or fact["retired"] or fact["pins"] or slot == self.newest():
            return False
        own = [s for s in self.checkpoints(self.lineage) if self.commits[s]["attempt"] == self.live]
        return bool(own) or (slot != self.base and slot not in self.left_behind[-1:])

    def open(self, base: int | None) -> None:
        self.left_behind = self.checkpoints(self.lineage) or self.left_behind
        self.lineage = [] if base is None else list(self.commits[base]["lineage"])
        self.live, self.base, self.decided, self.finished = self.live + 1, base, [], False

    def commit(self, slot: int, step: int, saved: bool) -> None:
        self.lineage = [*self.lineage, slot]
        fact = {
            "step": step,
            "attempt": self.live,
            "saved": saved,
            "retired": False,
            "pins": set(),
            "lineage": self.lineage,
        }
        self.commits[slot] = fact
        self.decided.append(step)
        if saved:
            self.left_behind = []


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "commit", "report", "abort", "attempt", "attempt", "retire",
        "retire", "pin",
                         "unpin", "finish", "annotate"]),
        st.integers(0, 12), st.sampled_from(["auto", "must", "never", "back", "back"]),
    ),
    min_size=5, max_size=30,
)  # fmt: skip


def asked(
    model: Model, state: State, what: str, number: int, resume: str
) -> tuple[bool, type[AnyEntry], int, dict[str, Any]]:
    """(whether the model allows it, kind, attempt, fields) of one operation on a run."""
    slots = sorted(model.commits)
    slot = slots[number % len(slots)] if slots and number < 11 else number
    live = model.live
    if what == "attempt":
        old = model.newest() if resume in ("auto", "must") else slot if resume == "back" and slots else None
        if number == 12 and slots:
            old = slots[0]  # often the wrong one
        step = model.commits[old]["step"] if old in model.commits else 0
        base = None if old is None else Base(slot=old, step=step)
        policy = step if resume == "back" else resume
        allowed = model.may_resume(policy, old)
        return allowed, records.Attempt, live + 1, attempt_fields(live + 1, resume=policy, base=base)
    step = max(0, max([0, *model.decided, *(model.commits[s]["step"] for s in model.lineage)]) + number - 1)
    fact = model.commits.get(slot)
    there = fact is not None and not fact["retired"]
    match what:
        case "commit" | "report":
            return model.open_step(step), records.Commit, live, commit_fields(step, live, saved=what == "commit")
        case "abort":
            return model.open_step(step), records.Abort, live, ABORT | {"step": step}
        case "retire":
            return model.may_retire(slot), records.Retire, live, {"slots": (slot,)}
        case "pin":
            return there, records.Pin, live, {"commit_slot": slot, "name": resume}
        case "unpin":
            return (
                bool(there and fact and resume in fact["pins"]),
                records.Unpin,
                live,
                {"commit_slot": slot, "name": resume},
            )
        case "finish":
            return live > 0 and not model.finished, records.Finish, live, {"status": "done"}
    return there, records.Annotate, live, {"commit_slot": slot, "metrics": {}, "origin": ""}


def done(model: Model, state: State, entry: AnyEntry) -> None:
    """The model after an entry that was allowed."""
    slot = state.next_slot - 1
    match entry:
        case records.Attempt():
            model.open(entry.base.slot if entry.base else None)
        case records.Commit():
            model.commit(slot, entry.step, entry.checkpoint is not None)
        case records.Abort():
            model.decided.append(entry.step)
        case records.Retire():
            for gone in entry.slots:
                model.commits[gone]["retired"] = True
        case records.Pin():
            model.commits[entry.commit_slot]["pins"].add(entry.name)
        case records.Unpin():
            model.commits[entry.commit_slot]["pins"].remove(entry.name)
        case records.Finish():
            model.finished = True


@pytest.mark.rule("J6", "J13", "J14", "J15", "J17", "J18", "J19", "J21")
@settings(max_examples=100, deadline=None)
@given(OPERATIONS)
def test_the_fold_is_what_the_naive_model_says(operations):
    model, state = Model(), grown(None, records.Genesis, 0, registers="create")
    for operation in [("attempt", 0, "auto"), *operations]:
        allowed, kind, attempt, fields = asked(model, state, *operation)
        if not allowed:
            with pytest.raises(Refused):
                compose(state, kind, attempt, **fields)
            continue
        entry = compose(state, kind, attempt, **fields)
        state = grown(state, kind, attempt, **fields)
        done(model, state, entry)
        check(model, state)


def check(model: Model, state: State) -> None:
    """The state is what the model says, and what must not go has not gone."""
    lineage = state.lineage()
    assert [fact.slot for fact in lineage] == model.lineage
    assert [fact.step for fact in lineage] == sorted({fact.step for fact in lineage})
    newest = model.newest()
    assert (state.checkpoint.slot if state.checkpoint else None) == newest
    assert (state.report.slot if state.report else None) == (model.lineage[-1] if model.lineage else None)
    assert state.newest == (None if newest is None else Base(slot=newest, step=model.commits[newest]["step"]))
    retired = {slot for slot, fact in state.commits.items() if fact.retired}
    assert retired == {slot for slot, fact in model.commits.items() if fact["retired"]}
    assert newest not in retired
    own = [fact for fact in lineage if fact.saved and fact.attempt == model.live]
    assert own or model.base not in retired
    assert all(fact.pins == model.commits[slot]["pins"] for slot, fact in state.commits.items())
    for slot, fact in state.commits.items():
        assert not (fact.pins and fact.retired)
        if not fact.retired:
            assert (history.protection(state, slot) == "") == model.may_retire(slot)
    fates = [(fact.attempt, fact.step) for fact in state.commits.values()]
    assert len(set(fates)) == len(fates)


@pytest.mark.rule("J16")
def test_a_commit_that_is_refused_leaves_its_step_open_for_an_abort():
    state = grown(grown(None, records.Genesis, 0, registers="create"), records.Attempt, 1, **attempt_fields(1))
    with pytest.raises(Refused):
        compose(state, records.Commit, 1, **commit_fields(10, 1) | {"reporting_ranks": ((0, 0),)})
    state = grown(state, records.Abort, 1, **ABORT | {"step": 10})
    assert (state.floor, state.aborts, state.lineage()) == (10, 1, [])


@pytest.mark.rule("J15", "J21")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10**16 - 1), min_size=1, max_size=8))
def test_latest_is_the_newest_of_the_lineage_whatever_the_numbers(numbers):
    state = grown(grown(None, records.Genesis, 0, registers="create"), records.Attempt, 1, **attempt_fields(1))
    highest = -1
    for step in numbers:
        if step > highest:
            state, highest = grown(state, records.Commit, 1, **commit_fields(step, 1)), step
        else:
            with pytest.raises(Refused, match="step-ascends"):
                compose(state, records.Commit, 1, **commit_fields(step, 1))
    assert state.head.checkpoint is not None and state.head.checkpoint.step == highest
    state = grown(state, records.Attempt, 2, **attempt_fields(2, resume="never"))
    assert state.head.checkpoint is None
    state = grown(state, records.Commit, 2, **commit_fields(0, 2))
    assert state.head.checkpoint == records.Point(slot=state.next_slot - 1, step=0, attempt=2)
