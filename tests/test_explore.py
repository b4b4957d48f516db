"""Every history of the real registers within small bounds; and wrong registers, which must be caught."""

from __future__ import annotations

import inspect
import types

import pytest

from tallymark import ballots, register
from tallymark.testing.explore import SMALL, SUBJECTS, Bounds, Violated, explore, main
from tallymark.testing.replay import Subject


@pytest.mark.rule("G1", "G5", "G7", "G8", "G9")
@pytest.mark.parametrize(("name", "bounds"), SMALL, ids=lambda value: str(value).replace(" ", "-"))
def test_no_history_decides_two_values(name, bounds):
    report = explore(SUBJECTS[name], bounds)
    told = {outcome for ending in report.endings for outcome in ending}
    values = {f"value of {who}".encode() for who in range(bounds.proposers)}
    assert values <= told, "not every proposer can win: the search is blind"
    assert all(len(set(ending) & values) <= 1 for ending in report.endings)
    assert report.states > 6_000
    if bounds.faults:
        assert "unknown" in told


def wrong(module: types.ModuleType, *patches: tuple[str, str]) -> types.ModuleType:
    """The module, made from its own source with a few lines changed."""
    source = inspect.getsource(module)
    for right, patched in patches:
        assert source.count(right) == 1, f"the line to patch is gone or not alone: {right!r}"
        source = source.replace(right, patched)
    made = types.ModuleType(module.__name__)  # the real name: dataclasses look their module up
    exec(compile(source, made.__name__, "exec"), made.__dict__)
    return made


def wrong_ballots(*patches: tuple[str, str]) -> Subject:
    subject: Subject = wrong(ballots, *patches).BallotRegister
    return subject


ONE_BLOCK_FOR_EACH_PROPOSER = (
    ("self._put(self._prefix + name, ", 'name = f"{self._proposer}.json"\n        self._put(self._prefix + name, '),
    (
        "        block = parse_block(key.removeprefix(self._prefix))\n",
        "        said = records.decode(self._retrying(lambda: self._store.read(key)), Ballot, key)\n"
        '        digest = value_digest(said.value.encode()) if said.value else ""\n'
        "        block = Block(said.number, said.proposer, said.phase, said.accepted, digest)\n"
        "        self.__dict__.setdefault('said', {})[block] = said.value\n",
    ),
    ("key = self._prefix + block_name(block)", "return self.said[block].encode()"),
)
NO_SECOND_LOOK = (("return None if self._beaten(number, seen) else value", "return value"),)
NO_FIRST_LOOK = (
    (
        "if self._beaten(number, seen):\n            return None\n        value = self._choose(seen)",
        "value = self._body",
    ),
)
OWN_VALUE_ALWAYS = (("self._value(block) if block.accepted else self._body", "self._body"),)
SOME_ACCEPTED_VALUE = (
    (
        "block = max(seen, key=lambda block: block.accepted_ballot)",
        "block = min(seen, key=lambda b: -bool(b.accepted))",
    ),
)
NUMBERS_WITHOUT_PROPOSERS = (("return highest > (number, self._proposer)", "return highest[0] > number"),)
LOOKS_BEFORE_IT_PUTS = (
    (
        "        self._put(self._prefix + name, records.canonical(body))\n",
        "        keys = self._retrying(lambda: [item.key for item in self._store.list(self._prefix)])\n"
        "        self._put(self._prefix + name, records.canonical(body))\n",
    ),
    (
        "        keys = self._retrying(lambda: [item.key for item in self._store.list(self._prefix)])\n"
        "        if self._prefix + name not in keys:\n",
        "        keys.append(self._prefix + name)\n        if self._prefix + name not in keys:\n",
    ),
)
NEVER_EXPOSED = (("self._exposed = self._exposed or value == self._body", "pass"),)


@pytest.mark.rule("G5", "G7", "G8")
@pytest.mark.parametrize(
    "patches",
    [
        pytest.param(ONE_BLOCK_FOR_EACH_PROPOSER, id="one-block-for-each-proposer"),
        pytest.param(NO_SECOND_LOOK, id="no-second-look"),
        pytest.param(NO_FIRST_LOOK, id="no-first-look"),
        pytest.param(OWN_VALUE_ALWAYS, id="own-value-always"),
        pytest.param(SOME_ACCEPTED_VALUE, id="some-accepted-value"),
        pytest.param(NUMBERS_WITHOUT_PROPOSERS, id="numbers-without-proposers"),
        pytest.param(LOOKS_BEFORE_IT_PUTS, id="looks-before-it-puts"),
        pytest.param(NEVER_EXPOSED, id="says-refused-when-unknown"),
    ],
)
def test_wrong_ballots_are_caught(patches):
    with pytest.raises(Violated) as caught:
        explore(wrong_ballots(*patches), Bounds(2, 1))
    assert caught.value.history


@pytest.mark.rule("G5")
def test_overwriting_one_s_block_is_wrong_only_because_old_requests_land_late():
    """The sequence of design.md 4.3: without faults it is the algorithm as published, and no history breaks it."""
    explore(wrong_ballots(*ONE_BLOCK_FOR_EACH_PROPOSER), Bounds(2, 1, faults=False))


@pytest.mark.rule("G6")
def test_two_proposers_of_one_id_are_caught():
    def subject(store, patience, nonce):
        return ballots.BallotRegister(store, patience, lambda: "0" * 16)

    with pytest.raises(Violated):
        explore(subject, Bounds(2, 1))


@pytest.mark.rule("G1")
@pytest.mark.parametrize(
    "patch",
    [
        ("return found", "return body"),
        ("if attempt == 1 and isinstance(", "if isinstance("),
        ("if self._store.create(key, body):", "if self._store.create(key, body) or attempt > 1:"),
    ],
)
def test_wrong_creates_are_caught(patch):
    made = wrong(register, patch)
    with pytest.raises(Violated):
        explore(lambda store, patience, nonce: made.CreateRegister(store, patience), Bounds(2, 1, denials=True))


def test_the_table_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("tallymark.testing.explore.SMALL", (("create", Bounds(2, 0)), ("ballots", Bounds(2, 0))))
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["cells", "create", "ballots"]
