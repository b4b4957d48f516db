"""Registers by conditional create: the ambiguous write, told the truth about; and patience."""

from __future__ import annotations

import threading

import pytest
from tests.proposers import KEY, OURS, THEIRS, Scripted, patient, race, register_of

from tallymark import layout
from tallymark.errors import CommitUnknown, StoreDenied, StoreError, StoreUnsuited
from tallymark.journal import Draft, Journal
from tallymark.records import Attempt, Genesis
from tallymark.register import CreateRegister, Patience, retrying
from tallymark.store.local import LocalStore
from tallymark.store.memory import MemoryStore

# ---- patience -------------------------------------------------------------------------------------------------------


def test_pauses_grow_are_jittered_and_end_at_the_deadline():
    now, slept = [0.0], []

    def sleep(pause_s: float) -> None:
        slept.append(pause_s)
        now[0] += pause_s

    patience = Patience(10.0, 1.0, 4.0, clock=lambda: now[0], sleep=sleep, random=lambda: 0.5)
    assert list(patience.attempts()) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert slept == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 0.5]


def test_the_first_attempt_always_comes():
    assert list(Patience(0.0).attempts()) == [1]
    assert list(patient(3).attempts(until=-1.0)) == [1]


@pytest.mark.parametrize(("failures", "retryable", "calls"), [(2, True, 3), (9, True, 4), (9, False, 1)])
def test_retrying_tries_again_what_may_succeed(failures, retryable, calls):
    made = []

    def call() -> str:
        made.append(1)
        if len(made) <= failures:
            raise StoreError(f"failure {len(made)}", key="k", retryable=retryable)
        return "done"

    if failures < calls:
        assert retrying(call, patient(3)) == "done"
    else:
        with pytest.raises(StoreError, match=f"failure {calls}"):
            retrying(call, patient(3))
    assert len(made) == calls


# ---- the ambiguous write --------------------------------------------------------------------------------------------


@pytest.mark.rule("G1")
@pytest.mark.parametrize(
    "script",
    [
        ["create ok"],
        ["create lost"],
        ["create down"],
        ["create exists"],
        ["create late"],
        ["create late", "read down", "create down"],
        ["create lost", "read down", "create exists"],
        ["create down", "read down", "create down", "read down"],
        ["create lost", "read down", "create denied"],
    ],
)
def test_whoever_wins_is_told_so_however_the_reply_was_lost(script):
    store = Scripted(*script)
    assert CreateRegister(store, patient()).propose(KEY, OURS) == OURS
    assert store.behind(KEY) == OURS


@pytest.mark.rule("G1")
@pytest.mark.parametrize("script", [["create ok"], ["create lost"], ["create broken"], ["create down", "read down"]])
def test_whoever_loses_is_told_what_won(script):
    store = Scripted(*script)
    MemoryStore.put(store, KEY, THEIRS)
    register = CreateRegister(store, patient())
    assert register.propose(KEY, OURS) == THEIRS
    assert register.decided(KEY) == store.behind(KEY) == THEIRS


@pytest.mark.parametrize("word", ["exists", "down"])
def test_a_conflict_for_ever_is_unknown_and_nothing_else_was_tried(word):
    store = Scripted(*[f"create {word}"] * 99)
    with pytest.raises(CommitUnknown, match="not known") as caught:
        CreateRegister(store, patient(5)).propose(KEY, OURS)
    assert caught.value.key == KEY
    assert store.asked == [f"create {KEY}", f"read {KEY}"] * 6
    assert not list(MemoryStore.list(store, ""))


def test_what_lands_after_giving_up_is_found_later():
    store = Scripted("create late")
    register = CreateRegister(store, patient(0))
    with pytest.raises(CommitUnknown):
        register.propose(KEY, OURS)
    assert store.behind(KEY) is None
    assert register.decided(KEY) == OURS  # it landed meanwhile
    assert register.propose(KEY, OURS) == OURS


@pytest.mark.parametrize(("word", "error"), [("denied", StoreDenied), ("unsuited", StoreUnsuited)])
def test_a_refusal_is_raised_as_it_is_unless_something_may_have_landed(word, error):
    store = Scripted(f"create {word}")
    with pytest.raises(error):
        CreateRegister(store, patient()).propose(KEY, OURS)
    assert store.asked == [f"create {KEY}"]
    for script in (
        ["create down", f"create {word}"],
        ["create lost", f"read {word}"],
        ["create exists", "read denied"],
    ):
        with pytest.raises(CommitUnknown) as caught:
            CreateRegister(Scripted(*script), patient()).propose(KEY, OURS)
        assert isinstance(caught.value.__cause__, StoreError)


def test_an_error_is_no_absence():
    store = Scripted("read down", "read down")
    MemoryStore.put(store, KEY, THEIRS)
    assert CreateRegister(store, patient()).decided(KEY) == THEIRS
    with pytest.raises(StoreDenied):
        CreateRegister(Scripted("read denied"), patient()).decided(KEY)


# ---- races ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("G1")
def test_eight_processes_learn_one_value_by_create(tmp_path):
    for slot, told in enumerate(race("create", str(tmp_path), processes=8, rounds=20)):
        assert told == {LocalStore(tmp_path).read(layout.slot_key(slot))}


@pytest.mark.rule("G1")
@pytest.mark.parametrize("kind", ["create", "ballots"])
def test_sixteen_threads_learn_one_value(kind):
    store = MemoryStore(creates_exclusively=kind == "create")
    for slot in range(5):
        key = layout.slot_key(slot)
        told: list[bytes] = []
        start = threading.Barrier(16)

        def propose(who: int, key=key, told=told, start=start) -> None:
            start.wait()
            told.append(register_of(kind, store, Patience(30.0, 0.001, 0.1)).propose(key, b"value %d" % who))

        threads = [threading.Thread(target=propose, args=(who,)) for who in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 16 and set(told) == {store.read(key)}


# ---- which kind a run has -------------------------------------------------------------------------------------------


class IgnoresConditions(MemoryStore):
    """A server that takes the condition and overwrites nevertheless."""

    __slots__ = ()

    def create(self, key: str, body: bytes) -> bool:
        self.put(key, body)
        return True


def ballots_of(store: MemoryStore | LocalStore, slot: int) -> list[str]:
    return [item.key for item in store.list(layout.ballots_prefix(layout.slot_key(slot)))]


@pytest.mark.rule("G3", "G4")
@pytest.mark.parametrize(
    ("store", "kind"),
    [
        (MemoryStore(), "create"),
        (MemoryStore(creates_exclusively=False), "ballots"),
        (IgnoresConditions(), "ballots"),
    ],
)
def test_slot_0_of_an_object_store_is_decided_by_ballots_and_names_the_kind_that_a_probe_found(store, kind):
    assert Journal(store).begin().registers == kind
    assert ballots_of(store, 0)
    assert not list(store.list("probe-"))


@pytest.mark.rule("G3")
def test_slot_0_of_a_folder_is_created(tmp_path):
    journal = Journal(LocalStore(tmp_path))
    assert journal.begin().registers == "create"
    assert not ballots_of(LocalStore(tmp_path), 0)
    assert isinstance(journal.tip(), Genesis)


@pytest.mark.rule("G2")
@pytest.mark.parametrize("kind", ["create", "ballots"])
def test_the_kind_is_the_run_s_and_a_client_that_cannot_do_it_says_why(kind):
    name = f"the-kind-is-the-run-s-{kind}"
    with_create, without = MemoryStore(name), MemoryStore(name, creates_exclusively=False)
    Journal(with_create if kind == "create" else without).begin()
    fields = {"launch_id": "a", "world_size": 1, "barrier_timeout_s": 9.0, "resume": "auto", "base": None}
    if kind == "create":
        with pytest.raises(StoreUnsuited, match="does not have"):
            Journal(without).append(lambda state: Draft(Attempt, 1, fields))
        assert with_create.read(layout.slot_key(1)) is None
    else:
        Journal(with_create).append(lambda state: Draft(Attempt, 1, fields))
        assert ballots_of(with_create, 1)
