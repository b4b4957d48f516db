"""The journal: appending under doubt, finding the end, damage."""

from __future__ import annotations

import msgspec
import pytest

from tallymark import layout, records
from tallymark.errors import CommitUnknown, JournalCorrupt, StoreDenied, StoreError
from tallymark.journal import Draft, Journal, Settled
from tallymark.register import Patience
from tallymark.store.memory import MemoryStore
from tallymark.testing.counting import CountingStore


def patient(pauses: int = 4) -> Patience:
    """Patience that ends after so many pauses, without sleeping."""
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 1.0

    return Patience(timeout_s=pauses, clock=lambda: now[0], sleep=sleep, random=lambda: 1.0)


class Unsure(MemoryStore):
    """A store whose creates misbehave on demand: `plan` holds one word for each of the next creates.

    lost: applied, then an error. refused: an error, nothing applied. late: an error now, applied at the next read but
    one. denied: credentials are refused.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.plan: list[str] = []
        self.late: list[tuple[int, str, bytes]] = []
        self.sent: list[tuple[str, bytes]] = []

    def create(self, key: str, body: bytes) -> bool:
        self.sent.append((key, body))
        word = self.plan.pop(0) if self.plan else ""
        if word == "denied":
            raise StoreDenied("these credentials are refused", key=key)
        if word == "lost":
            super().create(key, body)
        if word == "late":
            self.late.append((2, key, body))
        if word:
            raise StoreError(f"{word}: 503", key=key, retryable=True)
        return super().create(key, body)

    def read(self, key: str) -> bytes | None:
        self.late = [(left - 1, *rest) for left, *rest in self.late]
        for left, other, body in self.late:
            if left == 0:
                super().create(other, body)
        return super().read(key)


def begun(store: MemoryStore, *, patience: Patience | None = None) -> Journal:
    journal = Journal(store, patience=patience or patient())
    journal.begin()
    return journal


def attempt(number: int, launch: str = "") -> Draft:
    fields = {
        "launch_id": launch or f"launch-{number}",
        "world_size": 2,
        "barrier_timeout_s": 5.0,
        "resume": "never",
        "base": None,
    }
    return Draft(records.Attempt, number, fields)


def commit(number: int, step: int) -> Draft:
    fields = {
        "step": step,
        "checkpoint": None,
        "reporting_ranks": ((0, 1),),
        "metrics": {"loss": 1.0},
        "tally_digest": "0" * 64,
    }
    return Draft(records.Commit, number, fields)


def next_attempt(journal: Journal):
    return journal.append(lambda state: attempt(len(state.attempts) + 1))


def write_commits(journal: Journal, count: int) -> None:
    for step in range(count):
        journal.append(lambda state, step=step: commit(1, step), refresh=False)


@pytest.mark.rule("J7")
def test_an_append_follows_from_the_state_and_is_its_own():
    store = MemoryStore()
    one, other = begun(store), Journal(store, patience=patient())
    first = next_attempt(one)
    second = next_attempt(other)
    assert (first.slot, second.slot) == (1, 2)
    assert second.prev == records.sha256(store.read(layout.slot_key(1)))
    assert first.nonce != second.nonce
    assert second.head.attempt == 2


@pytest.mark.rule("J8")
@pytest.mark.parametrize("word", ["lost", "late", "refused"])
def test_the_caller_is_told_the_truth_about_a_doubtful_write(word):
    store = Unsure()
    journal = begun(store)
    store.plan = [word]
    entry = next_attempt(journal)
    assert store.read(layout.slot_key(entry.slot)) == records.canonical(entry)
    assert store.read(layout.slot_key(entry.slot + 1)) is None


@pytest.mark.rule("J8", "J9")
def test_a_slot_lost_to_another_is_derived_anew():
    store = Unsure()
    one, other = begun(store), Journal(store, patience=patient())
    next_attempt(one)
    other.refresh()
    one.append(lambda state: commit(1, 5))
    asked = []

    def derive(state):
        asked.append(state.next_slot)
        return Settled("settled") if state.floor >= 5 else commit(1, 5)

    assert other.append(derive, refresh=False) == "settled"
    assert asked == [2, 3]
    assert store.read(layout.slot_key(3)) is None


@pytest.mark.rule("J10", "J11")
def test_a_write_that_never_reads_back_stays_unknown_and_nothing_else_is_tried():
    store = Unsure()
    journal = begun(store)
    store.sent.clear()
    store.plan = ["refused"] * 100
    with pytest.raises(CommitUnknown) as caught:
        next_attempt(journal)
    assert caught.value.key == layout.slot_key(1)
    assert len(store.sent) > 2
    assert len(set(store.sent)) == 1, "other bytes or another slot were tried while the first was undecided"


@pytest.mark.rule("J10", "J11")
def test_what_was_given_up_comes_first_the_next_time():
    store = Unsure()
    journal = begun(store)
    store.plan = ["refused"] * 100
    with pytest.raises(CommitUnknown):
        next_attempt(journal)
    given_up = store.sent[-1]
    store.plan = []
    store.sent.clear()
    entry = journal.append(lambda state: attempt(len(state.attempts) + 1))
    assert store.sent[0] == given_up
    assert entry.slot == 2
    assert [fact.number for fact in journal.state.attempts] == [1, 2]


@pytest.mark.rule("J10", "J11")
def test_a_later_refusal_does_not_make_an_unknown_write_known():
    store = Unsure()
    journal = begun(store)
    store.sent.clear()
    store.plan = ["refused"] * 100
    with pytest.raises(CommitUnknown):
        next_attempt(journal)
    store.plan = ["denied"]
    with pytest.raises(CommitUnknown):
        next_attempt(journal)
    store.plan = []
    next_attempt(journal)
    to_slot_1 = {body for key, body in store.sent if key == layout.slot_key(1)}
    assert len(to_slot_1) == 1, "other bytes were sent to a slot whose outcome is unknown"


@pytest.mark.rule("J11")
def test_refused_credentials_are_told_as_such_and_leave_no_doubt_behind():
    store = Unsure()
    journal = begun(store)
    store.plan = ["denied"]
    with pytest.raises(StoreDenied):
        next_attempt(journal)
    assert next_attempt(journal).slot == 1


@pytest.mark.rule("J22")
@pytest.mark.parametrize("ranks", [((0, 0),), ((1, 1),), ((0, 2),), ()])
def test_a_commit_without_the_word_of_every_rank_is_not_written(ranks):
    store = MemoryStore()
    journal = begun(store)
    next_attempt(journal)
    draft = commit(1, 0)
    draft.fields["reporting_ranks"] = ranks
    with pytest.raises(records.RecordError, match="ranks-all"):
        journal.append(lambda state: draft)
    assert store.read(layout.slot_key(2)) is None


@pytest.mark.rule("J12")
@pytest.mark.parametrize("hint", ["fresh", "absent", "old", "too high", "of another run", "damaged"])
@pytest.mark.parametrize("entries", [0, 1, 2, 40])
def test_the_end_is_found_whatever_the_hint_says(hint, entries):
    store = MemoryStore()
    journal = begun(store)
    next_attempt(journal)
    write_commits(journal, entries)
    last = journal.state.next_slot - 1
    run_id = journal.state.run_id
    body = {
        "fresh": records.Hint(run_id=run_id, slot=last),
        "old": records.Hint(run_id=run_id, slot=0),
        "too high": records.Hint(run_id=run_id, slot=last + 1000),
        "of another run": records.Hint(run_id="f" * 32, slot=last),
    }.get(hint)
    store.delete([layout.HINT])
    if hint != "absent":
        store.put(layout.HINT, records.canonical(body) if body else b'{"half":')
    assert Journal(store, patience=patient()).tip().slot == last


@pytest.mark.rule("J12")
def test_the_tip_is_found_without_a_listing_and_in_few_reads():
    store = CountingStore(MemoryStore())
    journal = begun(store)
    next_attempt(journal)
    write_commits(journal, 500)
    store.put(layout.HINT, records.canonical(records.Hint(run_id=journal.state.run_id, slot=0)))
    before = len(store.operations)
    assert Journal(store, patience=patient()).tip().slot == 501
    done = [operation.name for operation in store.operations[before:]]
    assert "list" not in done
    assert len(done) <= 24


def test_there_is_no_run_in_an_empty_place():
    journal = Journal(MemoryStore(), patience=patient())
    assert journal.tip() is None
    journal.refresh()
    assert journal.state is None


@pytest.mark.rule("J5")
@pytest.mark.parametrize("damage", ["torn", "foreign", "other bytes", "a wrong head"])
def test_nobody_goes_past_a_damaged_slot(damage):
    store = MemoryStore()
    journal = begun(store)
    next_attempt(journal)
    write_commits(journal, 5)
    key = layout.slot_key(3)
    body = store.read(key)
    entry = records.decode_entry(body, 3)
    store.put(
        key,
        {
            "torn": body[:-7],
            "foreign": store.read(layout.slot_key(2)),
            "other bytes": records.canonical(msgspec.structs.replace(entry, wall_time="later")),
            "a wrong head": records.canonical(
                msgspec.structs.replace(entry, head=msgspec.structs.replace(entry.head, commits=9))
            ),
        }[damage],
    )
    reader = Journal(store, patience=patient())
    with pytest.raises(JournalCorrupt) as caught:
        reader.refresh()
    assert caught.value.slot == (4 if damage == "other bytes" else 3)
    with pytest.raises(JournalCorrupt):
        reader.append(lambda state: commit(1, 99))


def test_a_deleted_slot_is_found_out():
    store = MemoryStore()
    journal = begun(store)
    next_attempt(journal)
    write_commits(journal, 40)
    store.delete([layout.slot_key(20)])
    with pytest.raises(JournalCorrupt, match="slot 20 is missing"):
        Journal(store, patience=patient()).refresh()


def test_a_damaged_slot_is_passed_over_once_a_void_entry_says_so():
    store = MemoryStore()
    journal = begun(store)
    next_attempt(journal)
    write_commits(journal, 3)
    key, damaged = layout.slot_key(4), b'{"torn":'
    store.put(key, damaged)
    # What a repair does: a replay that was told to pass slot 4 over, and the entry that tells everybody.
    repair = Journal(store, patience=patient())
    with pytest.raises(JournalCorrupt):
        repair.refresh()
    from tallymark import history

    repair.state = history.pass_over(repair.state, records.sha256(damaged))
    fields = {"void_slot": 4, "void_sha256": records.sha256(damaged), "why": "a disk lost it"}
    repair.append(lambda state: Draft(records.Void, 1, fields), refresh=False)
    reader = Journal(store, patience=patient())
    reader.refresh()
    assert reader.state.next_slot == 6
    assert sorted(fact.step for fact in reader.state.commits.values()) == [0, 1]
    assert Journal(store, patience=patient()).tip().slot == 5
    store.delete([layout.HINT])
    assert Journal(store, patience=patient()).tip().slot == 5
    entry = reader.append(lambda state: commit(1, 9))
    assert entry.slot == 6
