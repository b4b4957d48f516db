"""Journals, and what they amount to or why their last entry is refused (docs/spec/journal.md).

Heads are made by `Book`, which goes another way than the library: it keeps, for every commit, the whole lineage that
ends there, and takes the head from the lineage of the live attempt.
"""

from __future__ import annotations

from typing import Any

from cases.plain import canonical, folder, sha256

RUN, OTHER_RUN = "0" * 31 + "1", "0" * 31 + "2"
CASES: list[dict[str, Any]] = []
Spec = dict[str, Any]


class Book:
    """What a journal amounts to, kept naively. It believes every entry."""

    def __init__(self) -> None:
        self.attempt, self.attempt_slot, self.base, self.world = 0, None, None, 0
        self.finished: str | None = None
        self.lineage: list[dict[str, Any]] = []
        self.until: dict[int, list[dict[str, Any]]] = {}
        self.attempts = self.commits = self.aborts = self.retired = 0

    def take(self, slot: int, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "attempt":
            self.attempt, self.attempt_slot, self.base = entry["attempt"], slot, entry["base"]
            self.world, self.finished, self.attempts = entry["world_size"], None, self.attempts + 1
            self.lineage = self.until.get(self.base["slot"], []) if self.base and not self.base["run_id"] else []
        elif kind == "commit":
            point = {"slot": slot, "step": entry["step"], "attempt": entry["attempt"]}
            self.lineage = [*self.lineage, point | {"saved": entry["checkpoint"] is not None}]
            self.until[slot] = self.lineage
            self.commits += 1
        elif kind == "abort":
            self.aborts += 1
        elif kind == "retire":
            self.retired += len(entry["slots"])
        elif kind == "finish":
            self.finished = entry["status"]

    def head(self) -> dict[str, Any]:
        points = [{key: fact[key] for key in ("slot", "step", "attempt")} for fact in self.lineage]
        saved = [point for point, fact in zip(points, self.lineage, strict=True) if fact["saved"]]
        return {
            "attempt": self.attempt, "attempt_slot": self.attempt_slot, "base": self.base,
            "checkpoint": saved[-1] if saved else None, "report": points[-1] if points else None,
            "finished": self.finished, "attempts": self.attempts, "commits": self.commits, "aborts": self.aborts,
            "retired": self.retired,
        }  # fmt: skip


def write(specs: tuple[Spec, ...]) -> list[dict[str, Any]]:
    """The entries in full: slots, hashes and heads are filled in, unless a spec sets them."""
    book, entries, bodies = Book(), [], []
    for slot, spec in enumerate(specs):
        if "damaged_bytes" in spec:
            bodies.append(spec["damaged_bytes"])
            entries.append(spec)
            continue
        entry = {
            "format": "tallymark.entry/1", "run_id": RUN, "slot": slot, "prev": sha256(bodies[-1]) if bodies else None,
            "attempt": book.attempt, "written_by": "host-1 (pid 1)", "nonce": f"{slot:016x}",
            "wall_time": "2024-05-01T12:00:00+00:00",
        } | {key: value for key, value in spec.items() if key != "head"}  # fmt: skip
        if entry["kind"] == "commit":
            entry.setdefault("reporting_ranks", [[0, book.world - 1]])
            if isinstance(entry["checkpoint"], list):
                entry["checkpoint"] = {
                    "path": folder(entry["step"], entry["attempt"]), "adopted": False, "kind": "files",
                    "ranks": entry["checkpoint"], "files": 1, "bytes": 1,
                }  # fmt: skip
        if entry["kind"] == "void" and entry["void_slot"] < slot:
            entry.setdefault("void_sha256", sha256(bodies[entry["void_slot"]]))
        book.take(slot, entry)
        entry["head"] = book.head() | spec.get("head", {})
        bodies.append(canonical(entry))
        entries.append(entry)
    return entries


def ok(name: str, rule: str, *specs: Spec, lineage: list[int], floor: int) -> None:
    """All are valid. `lineage`: slots. `floor`: the highest step that may no longer be decided."""
    expected = {"lineage": lineage, "floor": floor}
    CASES.append({"name": name, "rule": rule, "entries": write(specs), "expected": expected})


def no(name: str, rule: str, word: str, *specs: Spec) -> None:
    """All but the last are valid, and the last is refused with this word."""
    CASES.append({"name": name, "rule": rule, "entries": write(specs), "expected": {"refused": word}})


def genesis(**more: Any) -> Spec:
    return {"kind": "genesis", "registers": "create"} | more


def attempt(number: int, resume: Any = "auto", base: Any = None, *, world: int = 4, **more: Any) -> Spec:
    return {
        "kind": "attempt", "attempt": number, "launch_id": f"launch-{number}", "call": None, "world_size": world,
        "barrier_timeout_s": 1800.0, "resume": resume, "base": base,
    } | more  # fmt: skip


def at(slot: int, step: int, **more: Any) -> dict[str, Any]:
    return {"slot": slot, "step": step, "run_url": None, "run_id": None} | more


def commit(step: int, ranks: Any = ((0, 3),), **more: Any) -> Spec:
    """A commit; `ranks` contributed (None: metrics only)."""
    checkpoint = None if ranks is None else [list(pair) for pair in ranks]
    spec = {"kind": "commit", "step": step, "checkpoint": checkpoint, "metrics": {"loss": 0.5}}
    return spec | {"tally_digest": sha256(f"tally {step}")} | more


def report(step: int, **more: Any) -> Spec:
    return commit(step, None, **more)


def abort(step: int, **more: Any) -> Spec:
    return {"kind": "abort", "step": step, "reason": "timeout", "ranks": [[3, 3]], "culprits": [], "detail": ""} | more


def retire(*slots: int, **more: Any) -> Spec:
    return {"kind": "retire", "slots": list(slots)} | more


def pin(slot: int, name: str = "paper", **more: Any) -> Spec:
    return {"kind": "pin", "commit_slot": slot, "name": name} | more


def unpin(slot: int, name: str = "paper", **more: Any) -> Spec:
    return {"kind": "unpin", "commit_slot": slot, "name": name} | more


def annotate(slot: int, **more: Any) -> Spec:
    return {"kind": "annotate", "commit_slot": slot, "metrics": {"bleu": 30.5}, "origin": "eval-7"} | more


def finish(status: str = "done", **more: Any) -> Spec:
    return {"kind": "finish", "status": status} | more


def void(slot: int, **more: Any) -> Spec:
    return {"kind": "void", "void_slot": slot, "why": "a torn write"} | more


def damaged(text: str = '{"torn":') -> Spec:
    return {"damaged_bytes": text}


G, A1 = genesis(), attempt(1)
START = (G, A1)  # slots 0 and 1
TEN = (*START, commit(10))  # slot 2

# ---- J1, J2, J3: the order of slots ----------------------------------------------------------------------------------

ok("a run begins", "J2", G, lineage=[], floor=-1)
ok("a run by ballots begins", "J2", genesis(registers="ballots"), lineage=[], floor=-1)
no("the first slot holds something else", "J2", "genesis-first", attempt(1))
no("a second genesis", "J2", "genesis-first", G, genesis())
no("a second genesis after an attempt", "J2", "genesis-first", *START, genesis())
no("a genesis of an attempt", "J2", "genesis-first", genesis(attempt=1))
no("registers of an unknown kind", "J2", "registers-known", genesis(registers="leases"))
no("a genesis that says slot 1", "J1", "slot-dense", genesis(slot=1))
no("a slot is left out", "J1", "slot-dense", *START, commit(10, slot=3))
no("a slot comes twice", "J1", "slot-dense", *START, commit(10, slot=1))
no("a genesis with something before it", "J3", "chain", genesis(prev="0" * 64))
no("the hash of other bytes", "J3", "chain", *START, commit(10, prev=sha256("other")))
no("no hash", "J3", "chain", *START, commit(10, prev=None))
no("an entry of another run", "J2", "run", *START, commit(10, run_id=OTHER_RUN))

# ---- J4, J5: heads ---------------------------------------------------------------------------------------------------

POINT = {"slot": 1, "step": 1, "attempt": 1}
for wrong in (
    {"attempt": 2}, {"attempt_slot": 0}, {"attempt_slot": None}, {"base": at(2, 10)}, {"checkpoint": None},
    {"checkpoint": POINT}, {"report": None}, {"report": POINT}, {"finished": "done"}, {"attempts": 0}, {"commits": 0},
    {"commits": 2}, {"aborts": 1}, {"retired": 1},
):  # fmt: skip
    [(key, value)] = wrong.items()
    no(f"a head with a wrong {key}: {value}", "J4", "head", *START, commit(10, head=wrong))
no("a head that says that somebody finished it", "J4", "head", genesis(head={"finished": ""}))

# ---- J13: attempts ---------------------------------------------------------------------------------------------------

ok("the first attempt", "J13", *START, lineage=[], floor=-1)
ok("the next attempt, nothing was committed", "J13", *START, attempt(2), lineage=[], floor=-1)
ok("the next attempt from the newest checkpoint", "J13", *TEN, attempt(2, base=at(2, 10)), lineage=[2], floor=10)
ok(
    "another world size",
    "J13",
    *TEN,
    attempt(2, base=at(2, 10), world=7),
    commit(11, [(0, 6)]),
    lineage=[2, 4],
    floor=11,
)
ok("must, and there is one", "J13", *TEN, attempt(2, "must", at(2, 10)), lineage=[2], floor=10)
ok("never, though there is one", "J13", *TEN, attempt(2, "never"), lineage=[], floor=-1)
no("attempt 0", "J13", "attempt-next", G, attempt(0))
no("attempt 2 before 1", "J13", "attempt-next", G, attempt(2))
no("attempt 1 again", "J13", "attempt-next", *START, attempt(1, launch_id="other"))
no("attempt 3 after 1", "J13", "attempt-next", *START, attempt(3))
no("a launch id that was used by the live attempt", "J13", "launch-new", *START, attempt(2, launch_id="launch-1"))
no("a launch id that was used long ago", "J13", "launch-new", *START, attempt(2), attempt(3, launch_id="launch-1"))
no("a base that is no commit", "J13", "base-live", *TEN, attempt(2, 10, at(1, 10)))
no("a base that is not written yet", "J13", "base-live", *TEN, attempt(2, 10, at(3, 10)))
no("a base with another step", "J13", "base-live", *TEN, attempt(2, 9, at(2, 9)))
no("a base without a checkpoint", "J13", "base-live", *START, report(10), attempt(2, 10, at(2, 10)))
no("a base that is retired", "J13", "base-live", *TEN, commit(20), retire(2), attempt(2, 10, at(2, 10)))
no("auto with an old base", "J13", "base-newest", *TEN, commit(20), attempt(2, "auto", at(2, 10)))
no("auto without a base, though there is one", "J13", "base-newest", *TEN, attempt(2))
no("must with an old base", "J13", "base-newest", *TEN, commit(20), attempt(2, "must", at(2, 10)))
no("must without a base, though there is one", "J13", "base-newest", *TEN, attempt(2, "must"))
no("must, and there is none", "J13", "base-resume", *START, attempt(2, "must"))
no("never with a base", "J13", "base-resume", *TEN, attempt(2, "never", at(2, 10)))
no("a step that the base is not at", "J13", "base-resume", *TEN, attempt(2, 9, at(2, 10)))
no("a step without a base", "J13", "base-resume", *TEN, attempt(2, 10))
no("a policy that nobody knows", "J13", "base-resume", *TEN, attempt(2, "latest"))
ok(
    "a report is newer, auto takes the checkpoint",
    "J13",
    *TEN,
    report(20),
    attempt(2, base=at(2, 10)),
    lineage=[2],
    floor=10,
)
ok("auto inherits the base of an attempt that committed nothing", "J13", *TEN, attempt(2, base=at(2, 10)),
   attempt(3, base=at(2, 10)), lineage=[2], floor=10)  # fmt: skip
ok(
    "auto after never: the old lineage is left behind",
    "J13",
    *TEN,
    attempt(2, "never"),
    attempt(3),
    lineage=[],
    floor=-1,
)
no(
    "auto after never, back to the old lineage",
    "J13",
    "base-newest",
    *TEN,
    attempt(2, "never"),
    attempt(3, base=at(2, 10)),
)
ok("step 0 as a base", "J13", *START, commit(0), attempt(2, 0, at(2, 0)), lineage=[2], floor=0)

AWAY = at(7, 500, run_url="s3://bucket/other", run_id=OTHER_RUN)
ok("a base in another run", "J13", G, attempt(1, 500, AWAY), lineage=[], floor=500)
ok("auto inherits a base in another run", "J13", G, attempt(1, 500, AWAY), attempt(2, base=AWAY), lineage=[], floor=500)
no("auto on a new run, with a base in another", "J13", "base-newest", G, attempt(1, base=AWAY))
no("a base in another run with its id only", "J13", "base-live", *TEN, attempt(2, 10, at(2, 10, run_id=OTHER_RUN)))
no("a base in another run with its url only", "J13", "base-live", *TEN, attempt(2, 10, at(2, 10, run_url="s3://b/r")))
no("a base in another run that is this one", "J13", "base-live", *TEN,
   attempt(2, 10, at(2, 10, run_url="s3://b/r", run_id=RUN)))  # fmt: skip

# ---- J14, J15, J22: decisions ----------------------------------------------------------------------------------------

ok("step 0", "J14", *START, commit(0), lineage=[2], floor=0)
ok("the highest step there is", "J14", *START, commit(10**16 - 1), lineage=[2], floor=10**16 - 1)
ok("steps ascend with gaps", "J14", *TEN, commit(11), abort(20), commit(10**13), lineage=[2, 3, 5], floor=10**13)
ok("an abort settles", "J14", *START, abort(10), lineage=[], floor=10)
ok("the step after the base", "J14", *TEN, attempt(2, base=at(2, 10)), commit(11), lineage=[2, 4], floor=11)
ok(
    "a later attempt decides a step again",
    "J15",
    *TEN,
    commit(20),
    attempt(2, 10, at(2, 10)),
    commit(20),
    lineage=[2, 5],
    floor=20,
)
no("a step that is committed", "J15", "step-ascends", *TEN, commit(10))
no("a commit of a step that is aborted", "J15", "step-ascends", *START, abort(10), commit(10))
no("an abort of a step that is committed", "J15", "step-ascends", *TEN, abort(10))
no("an abort of a step that is aborted", "J15", "step-ascends", *START, abort(10), abort(10))
no("a lower step was settled by a commit", "J15", "step-ascends", *TEN, commit(9))
no("a lower step was settled by an abort", "J15", "step-ascends", *START, abort(10), commit(9))
no("the step of the base", "J14", "step-ascends", *TEN, attempt(2, base=at(2, 10)), commit(10))
no("an abort of the step of the base", "J14", "step-ascends", *TEN, attempt(2, base=at(2, 10)), abort(10))
no("a step below a base in another run", "J14", "step-ascends", G, attempt(1, 500, AWAY), commit(500))
no("a commit before any attempt", "J14", "attempt-live", G, commit(10, [(0, 0)], reporting_ranks=[[0, 0]]))
no("an abort before any attempt", "J14", "attempt-live", G, abort(10))
no("a commit of a superseded attempt", "J14", "attempt-live", *START, attempt(2), commit(10, attempt=1))
no("an abort of a superseded attempt", "J14", "attempt-live", *START, attempt(2), abort(10, attempt=1))
no("a commit of an attempt to come", "J14", "attempt-live", *START, commit(10, attempt=2))
no("a rank's word is missing", "J22", "ranks-all", *START, commit(10, reporting_ranks=[[0, 2]]))
no("rank 0's word is missing", "J22", "ranks-all", *START, commit(10, reporting_ranks=[[1, 3]]))
no("a rank too many", "J22", "ranks-all", *START, commit(10, reporting_ranks=[[0, 4]]))
no("ranks with a gap", "J22", "ranks-all", *START, commit(10, reporting_ranks=[[0, 1], [3, 3]]))
no("all ranks, in two ranges", "J22", "ranks-all", *START, commit(10, reporting_ranks=[[0, 1], [2, 3]]))
ok(
    "ranks 2, 4 and 6 of 8 contribute",
    "J22",
    G,
    attempt(1, world=8),
    commit(10, [(2, 2), (4, 4), (6, 6)]),
    lineage=[2],
    floor=10,
)
ok("nobody contributes", "J22", *START, report(10), lineage=[2], floor=10)
ok("the last rank contributes", "J22", *START, commit(10, [(3, 3)]), lineage=[2], floor=10)
no("a checkpoint of nobody", "J22", "ranks-contributing", *START, commit(10, []))
no("a rank that is none contributes", "J22", "ranks-contributing", *START, commit(10, [(3, 4)]))
no("ranges that descend", "J22", "ranks-contributing", *START, commit(10, [(2, 3), (0, 0)]))
no("ranges that overlap", "J22", "ranks-contributing", *START, commit(10, [(0, 2), (2, 3)]))
no("ranges that touch", "J22", "ranks-contributing", *START, commit(10, [(0, 1), (2, 3)]))
no("a range that runs backwards", "J22", "ranks-contributing", *START, commit(10, [(2, 1)]))
PLACE = {"path": folder(10, 1), "adopted": False, "kind": "files", "ranks": [[0, 3]], "files": 1, "bytes": 1}
no("the folder of another step", "J22", "path-own", *START, commit(10, checkpoint=PLACE | {"path": folder(11, 1)}))
no("the folder of another attempt", "J22", "path-own", *START, attempt(2), commit(10, checkpoint=PLACE))
no("a folder of no step", "J22", "path-own", *START, commit(10, checkpoint=PLACE | {"path": "elsewhere/"}))
ok("an adopted checkpoint lies anywhere", "J22", *START,
   commit(10, checkpoint=PLACE | {"path": "s3://elsewhere/ten/", "adopted": True}), lineage=[2], floor=10)  # fmt: skip

# ---- J17: retiring ---------------------------------------------------------------------------------------------------

TWO = (*TEN, commit(20))  # slots 2 and 3
ok("an older checkpoint is retired", "J17", *TWO, retire(2), lineage=[2, 3], floor=20)
ok("two at once", "J17", *TWO, commit(30), retire(3, 2), lineage=[2, 3, 4], floor=30)
ok("metrics only, after the newest checkpoint", "J17", *TEN, report(20), retire(3), lineage=[2, 3], floor=20)
no("nothing is retired", "J17", "retire-some", *TWO, retire())
no("the same slot twice", "J17", "retire-some", *TWO, retire(2, 2))
no("the newest checkpoint", "J17", "protected", *TWO, retire(3))
no("the newest checkpoint beside an older one", "J17", "protected", *TWO, retire(2, 3))
no("the newest checkpoint, though a report is newer", "J17", "protected", *TEN, report(20), retire(2))
no("the newest checkpoint of a finished run", "J17", "protected", *TWO, finish(), retire(3))
no("what is retired", "J17", "commit-live", *TWO, retire(2), retire(2))
no("what is no commit", "J17", "commit-live", *TWO, retire(1))
no("what is not written yet", "J17", "commit-live", *TWO, retire(5))
no("what is pinned", "J17", "protected", *TWO, pin(2), retire(2))
no(
    "what is pinned twice and unpinned once",
    "J17",
    "protected",
    *TWO,
    pin(2, "a"),
    pin(2, "b"),
    unpin(2, "a"),
    retire(2),
)
ok("what was pinned", "J17", *TWO, pin(2), unpin(2), retire(2), lineage=[2, 3], floor=20)
BACK = (*TWO, attempt(2, 10, at(2, 10)))  # slot 4: a rollback
no("the base of the live attempt", "J17", "protected", *BACK, retire(2))
no("the newest before a rollback", "J17", "protected", *BACK, retire(3))
no("the base, while the live attempt has only reported", "J17", "protected", *BACK, report(11), retire(2))
no("the newest before, while the live attempt has only reported", "J17", "protected", *BACK, report(11), retire(3))
ok(
    "base and newest before, once the live attempt has a checkpoint",
    "J17",
    *BACK,
    commit(11),
    retire(2, 3),
    lineage=[2, 5],
    floor=11,
)
no("the newest before a fresh start", "J17", "protected", *TWO, attempt(2, "never"), retire(3))
ok("an older one before a fresh start", "J17", *TWO, attempt(2, "never"), retire(2), lineage=[], floor=-1)
no("the newest before two fresh starts", "J17", "protected", *TWO, attempt(2, "never"), attempt(3), retire(3))
ok("the newest before, once a fresh start has a checkpoint", "J17", *TWO, attempt(2, "never"), commit(1), retire(2, 3),
   lineage=[5], floor=1)  # fmt: skip
no(
    "the low checkpoint of a fresh start is the newest",
    "J17",
    "protected",
    *TWO,
    attempt(2, "never"),
    commit(1),
    retire(5),
)
no("a retire in the name of a superseded attempt", "J17", "attempt-live", *BACK, commit(11), retire(2, attempt=1))

# ---- J18: pins and annotations ---------------------------------------------------------------------------------------

ok("a pin, twice the same", "J18", *TEN, pin(2), pin(2), unpin(2), lineage=[2], floor=10)
ok("an annotation", "J18", *TEN, annotate(2), lineage=[2], floor=10)
ok("an annotation of a commit outside the lineage", "J18", *TEN, attempt(2, "never"), annotate(2), lineage=[], floor=-1)
no("a pin of no commit", "J18", "commit-live", *TEN, pin(1))
no("a pin of what is retired", "J18", "commit-live", *TWO, retire(2), pin(2))
no("an unpin of no commit", "J18", "commit-live", *TEN, unpin(0))
no("an unpin of a name that is not pinned", "J18", "pin-known", *TEN, pin(2, "a"), unpin(2, "b"))
no("an unpin twice", "J18", "pin-known", *TEN, pin(2), unpin(2), unpin(2))
no("an annotation of no commit", "J18", "commit-live", *TEN, annotate(3))
no("an annotation of what is retired", "J18", "commit-live", *TWO, retire(2), annotate(2))
no(
    "a pin in the name of a superseded attempt",
    "J18",
    "attempt-live",
    *TEN,
    attempt(2, base=at(2, 10)),
    pin(2, attempt=1),
)

# ---- J19: finish -----------------------------------------------------------------------------------------------------

ok("finished", "J19", *TEN, finish(), lineage=[2], floor=10)
ok("retire, pin, unpin and annotate after a finish", "J19", *TWO, finish(), pin(2), annotate(2), unpin(2), retire(2),
   lineage=[2, 3], floor=20)  # fmt: skip
ok(
    "a new attempt after a finish",
    "J19",
    *TEN,
    finish(),
    attempt(2, base=at(2, 10)),
    commit(11),
    lineage=[2, 5],
    floor=11,
)
no("a commit after a finish", "J19", "finished", *TEN, finish(), commit(11))
no("an abort after a finish", "J19", "finished", *TEN, finish(), abort(11))
no("a finish after a finish", "J19", "finished", *TEN, finish(), finish())
no("a finish with an empty status still is one", "J19", "finished", *TEN, finish(""), commit(11))
no("a finish before any attempt", "J19", "attempt-live", G, finish())
no("a finish by a superseded attempt", "J19", "attempt-live", *START, attempt(2), finish(attempt=1))

# ---- J20: damaged slots ----------------------------------------------------------------------------------------------

ok("a damaged slot, passed over", "J20", *TEN, damaged(), void(3), commit(11), lineage=[2, 5], floor=11)
ok("two damaged slots", "J20", *TEN, damaged("x"), damaged("y"), void(4), void(3), lineage=[2], floor=10)
no("a void for a sound slot", "J20", "void-damaged", *TEN, void(2))
no("a void for other bytes", "J20", "void-damaged", *TEN, damaged(), void(3, void_sha256=sha256("other")))
no("a void for a slot to come", "J20", "void-damaged", *TEN, void(9, void_sha256=sha256("other")))
no("a damaged slot is still hashed", "J20", "chain", *TEN, damaged(), void(3, prev=sha256("other")))

# ---- J21: lineage ----------------------------------------------------------------------------------------------------

ok("a rollback leaves the later commits behind", "J21", *BACK, commit(15), lineage=[2, 5], floor=15)
ok("a chain of three attempts", "J21", *TWO, attempt(2, base=at(3, 20)), commit(30), attempt(3, base=at(5,
    30)), commit(40),
   lineage=[2, 3, 5, 7], floor=40)  # fmt: skip
ok("a rollback across an attempt", "J21", *TWO, attempt(2, base=at(3, 20)), commit(30), attempt(3, 10, at(2, 10)),
   commit(11), lineage=[2, 7], floor=11)  # fmt: skip
ok("a rollback to a commit that an earlier rollback left", "J21", *BACK, commit(11), attempt(3, 20, at(3, 20)),
   lineage=[2, 3], floor=20)  # fmt: skip
ok(
    "reports after the base are left behind",
    "J21",
    *TEN,
    report(20),
    report(30),
    attempt(2, base=at(2, 10)),
    lineage=[2],
    floor=10,
)
ok("a fresh start at a low step", "J21", *START, commit(500), commit(700), attempt(2, "never"), commit(100),
   lineage=[5], floor=100)  # fmt: skip
ok("a base in another run ends the chain", "J21", *TEN, attempt(2, 500, AWAY), commit(501), lineage=[4], floor=501)
