"""Registers by ballots: what is asked of the store, what a lost reply may do, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from tests.proposers import KEY, OURS, THEIRS, Scripted, patient, race

from tallymark import layout, records
from tallymark.ballots import BallotRegister, Block, block_name, new_proposer, parse_block, value_digest
from tallymark.errors import CommitUnknown, InvalidInput, RecordError, StoreDenied, StoreError, StoreUnsuited
from tallymark.records import Ballot
from tallymark.register import Patience
from tallymark.store.local import LocalStore
from tallymark.store.memory import MemoryStore

PREFIX = layout.ballots_prefix(KEY)
A, B = "a" * 32, "b" * 32


def put_block(store: MemoryStore, number: int, proposer: str, accepted: int = 0, value: bytes | None = None) -> str:
    """Another proposer's block, written behind the back of the one under test."""
    phase = 2 if number == accepted else 1
    digest = "" if value is None else value_digest(value)
    name = PREFIX + block_name(Block(number, proposer, phase, accepted, digest))
    text = None if value is None else value.decode()
    ballot = Ballot(register=KEY, number=number, proposer=proposer, phase=phase, accepted=accepted, value=text)
    MemoryStore.put(store, name, records.canonical(ballot))
    return name


def blocks(store: MemoryStore | LocalStore, key: str = KEY) -> list[Block]:
    prefix = layout.ballots_prefix(key)
    listed = MemoryStore.list(store, prefix) if isinstance(store, MemoryStore) else store.list(prefix)
    found = [parse_block(item.key.removeprefix(prefix)) for item in listed]
    return [block for block in found if block is not None]


class Meddled(Scripted):
    """Somebody else acts just before the n-th request is served."""

    __slots__ = ("acts",)

    def __init__(self, acts: Mapping[int, Callable[[MemoryStore], object]], *script: str) -> None:
        super().__init__(*script, create=False)
        self.acts = dict(acts)

    def _word(self, verb: str, key: str, do: Callable[[], object]) -> str:
        if (act := self.acts.pop(len(self.asked) + 1, None)) is not None:
            act(self)
        return super()._word(verb, key, do)


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("G5")
@pytest.mark.parametrize("block", [Block(1, A, 1, 0, ""), Block(12, B, 1, 3, "0" * 32), Block(7, A[:16], 2, 7, A)])
def test_a_name_tells_ballot_phase_accepted_ballot_and_digest(block):
    assert parse_block(block_name(block)) == block


@pytest.mark.rule("G5")
def test_ballots_are_ordered_as_pairs_and_names_as_their_numbers():
    ordered = [Block(1, A, 1, 0, ""), Block(1, B, 1, 0, ""), Block(2, A, 1, 0, ""), Block(10, A, 1, 0, "")]
    assert sorted(ordered, key=lambda block: block.ballot) == ordered
    assert sorted(map(block_name, ordered)) == list(map(block_name, ordered))


# ---- a proposal, request by request ---------------------------------------------------------------------------------


@pytest.mark.rule("G7", "G8", "G9")
def test_undisturbed_it_is_six_requests_and_then_one():
    store = Scripted(create=False)
    assert BallotRegister(store, patient(), lambda: A).propose(KEY, OURS) == OURS
    first, second = (
        PREFIX + block_name(Block(1, A, 1, 0, "")),
        PREFIX + block_name(Block(1, A, 2, 1, value_digest(OURS))),
    )
    asked = [f"read {KEY}", f"put {first}", f"list {PREFIX}", f"put {second}", f"list {PREFIX}", f"put {KEY}"]
    assert store.asked == asked
    assert store.behind(KEY) == OURS
    assert BallotRegister(store, patient()).propose(KEY, THEIRS) == OURS
    assert store.asked == [*asked, f"read {KEY}"]
    assert BallotRegister(store, patient()).decided(KEY) == OURS


@pytest.mark.rule("G6")
def test_two_calls_are_two_proposers():
    store = MemoryStore(creates_exclusively=False)
    register = BallotRegister(store, patient())
    keys = [layout.slot_key(slot) for slot in range(3)]
    for key in keys:
        register.propose(key, OURS)
    proposers = {block.proposer for key in keys for block in blocks(store, key)}
    assert len(proposers) == 3 and all(re.fullmatch("[0-9a-f]{32}", proposer) for proposer in proposers)
    assert new_proposer() != new_proposer()


@pytest.mark.rule("G7")
def test_it_starts_again_above_a_higher_ballot():
    store = Meddled({3: lambda store: put_block(store, 41, B)})
    assert BallotRegister(store, patient(), lambda: A).propose(KEY, OURS) == OURS
    assert max(blocks(store)).ballot == (42, A)


@pytest.mark.rule("G8")
def test_the_value_of_the_greatest_accepted_ballot_is_adopted():
    store = Scripted(create=False)
    put_block(store, 1, B, 1, b"older")
    put_block(store, 3, B, 2, THEIRS)
    put_block(store, 9, A, 0)
    assert BallotRegister(store, patient()).propose(KEY, OURS) == THEIRS
    assert store.behind(KEY) == THEIRS


@pytest.mark.rule("G8")
def test_a_higher_ballot_after_the_accept_means_that_nothing_is_decided_yet():
    acts = {5: lambda store: put_block(store, 5, B), 8: lambda store: put_block(store, 6, B, 6, THEIRS)}
    store = Meddled(acts)
    assert BallotRegister(store, patient(), lambda: A).propose(KEY, OURS) == THEIRS
    said = [block for block in blocks(store) if block.proposer == A]
    digest = value_digest(OURS)
    assert said[:3] == [Block(1, A, 1, 0, ""), Block(1, A, 2, 1, digest), Block(6, A, 1, 1, digest)]
    assert said[-1].digest == value_digest(THEIRS)


@pytest.mark.rule("G9")
def test_an_accept_of_the_dead_is_no_value_until_somebody_decides_it():
    store = Scripted(create=False)
    put_block(store, 4, B, 4, THEIRS)
    register = BallotRegister(store, patient())
    assert register.decided(KEY) is None
    assert register.propose(KEY, OURS) == register.decided(KEY) == THEIRS


@pytest.mark.rule("G10")
def test_each_look_waits_until_others_writes_are_visible():
    slept: list[float] = []
    store = Scripted(create=False, visibility_s=60.0)
    patience = Patience(1.0, clock=lambda: sum(slept), sleep=slept.append)
    assert BallotRegister(store, patience).propose(KEY, OURS) == OURS
    assert slept == [60.0, 60.0]
    assert [line.split()[0] for line in store.asked] == ["read", "put", "list", "put", "list", "put"]


# ---- lost replies and giving up -------------------------------------------------------------------------------------


@pytest.mark.rule("G1", "G5")
@pytest.mark.parametrize("request_number", range(6))
@pytest.mark.parametrize("word", ["lost", "down", "late"])
def test_any_reply_may_be_lost(request_number, word):
    verbs = ["read", "put", "list", "put", "list", "put"]
    store = Scripted(
        *[f"{verb} ok" for verb in verbs[:request_number]], f"{verbs[request_number]} {word}", create=False
    )
    assert BallotRegister(store, patient()).propose(KEY, OURS) == OURS == store.behind(KEY)
    assert len(store.asked) == 7 and len(blocks(store)) == 2


@pytest.mark.rule("G1")
@pytest.mark.parametrize("word", ["down", "denied", "broken"])
def test_before_its_value_goes_out_an_error_is_raised_as_it_is(word):
    for script in (
        [f"read {word}"] * 9,
        ["read ok", *[f"put {word}"] * 9],
        ["read ok", "put ok", *[f"list {word}"] * 9],
    ):
        store = Scripted(*script, create=False)
        with pytest.raises(StoreDenied if word == "denied" else StoreError):
            BallotRegister(store, patient()).propose(KEY, OURS)
        assert not [block for block in blocks(store) if block.digest]


@pytest.mark.rule("G1")
@pytest.mark.parametrize("word", ["lost", "denied"])
@pytest.mark.parametrize("done", [3, 4, 5])
def test_once_its_value_went_out_giving_up_is_unknown(word, done):
    verbs = ["read", "put", "list", "put", "list", "put"]
    store = Scripted(*[f"{verb} ok" for verb in verbs[:done]], *[f"{verbs[done]} {word}"] * 9, create=False)
    with pytest.raises(CommitUnknown) as caught:
        BallotRegister(store, patient()).propose(KEY, OURS)
    assert caught.value.key == KEY and isinstance(caught.value.__cause__, StoreError)
    if not (done == 3 and word == "denied"):  # then the accept stands, and the next proposer finds it
        store = Scripted(create=False, name="")
        put_block(store, 1, A, 1, OURS)
        assert BallotRegister(store, patient()).propose(KEY, THEIRS) == OURS


def test_others_who_keep_coming_in_between_end_in_an_error_that_may_be_tried_again():
    def come(number: int) -> Callable[[MemoryStore], object]:
        return lambda store: put_block(store, number, B)

    acts = {number: come(number) for number in range(3, 99)}
    with pytest.raises(StoreError, match="kept coming") as caught:
        BallotRegister(Meddled(acts), patient(5)).propose(KEY, OURS)
    assert caught.value.retryable


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.rule("G10")
@pytest.mark.parametrize("hide", ["list", "read"])
def test_a_store_that_does_not_show_finished_writes_is_refused(hide):
    class Forgetful(MemoryStore):
        def list(self, prefix, after=""):
            return iter(()) if hide == "list" else super().list(prefix, after)

        def read(self, key):
            return None

    store = Forgetful()
    put_block(store, 4, B, 4, THEIRS)
    with pytest.raises(StoreUnsuited, match="not safe"):
        BallotRegister(store, patient()).propose(KEY, OURS)


@pytest.mark.rule("G5")
@pytest.mark.parametrize(
    "damage",
    [
        lambda store: MemoryStore.put(store, PREFIX + "README", b"hello"),
        lambda store: MemoryStore.put(store, PREFIX + "0000000001.v2.json", b'{"format":"tallymark.ballot/2"}'),
        lambda store: MemoryStore.put(store, put_block(store, 4, B, 4, THEIRS), b'{"format":"tallymark.ballot/1","re'),
        lambda store: MemoryStore.put(store, put_block(store, 4, B, 4, THEIRS), b'{"format":"tallymark.ballot/2"}'),
        lambda store: MemoryStore.put(
            store, put_block(store, 4, B, 4, THEIRS), store.behind(put_block(store, 3, B, 3, THEIRS))
        ),
        lambda store: MemoryStore.put(
            store, put_block(store, 4, B, 4, THEIRS), store.behind(put_block(store, 4, B, 4, b"other"))
        ),
    ],
)
def test_a_block_that_cannot_be_understood_is_refused_not_passed_over(damage):
    store = Scripted(create=False)
    damage(store)
    with pytest.raises(RecordError):
        BallotRegister(store, patient()).propose(KEY, OURS)
    assert store.behind(KEY) is None


def test_a_value_that_is_no_text_is_refused_before_anything_is_written():
    store = Scripted(create=False)
    with pytest.raises(InvalidInput):
        BallotRegister(store, patient()).propose(KEY, b"\xff")
    assert store.asked == []


# ---- races ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("G1", "G5", "G8", "G9")
def test_eight_processes_learn_one_value_by_ballots(tmp_path):
    store = LocalStore(tmp_path)
    for slot, told in enumerate(race("ballots", str(tmp_path), processes=8, rounds=8)):
        key = layout.slot_key(slot)
        assert told == {store.read(key)}
        accepted = max(blocks(store, key), key=lambda block: block.accepted_ballot)
        assert {accepted.digest} == {value_digest(value) for value in told}
