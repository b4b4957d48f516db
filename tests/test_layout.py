"""Names: keys, the testimony in a marker's name, fingerprints, and paths inside a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark import inventory, layout, records
from tallymark.errors import InvalidInput
from tallymark.layout import MarkerName, MemberName

ROOT = Path(__file__).resolve().parents[1]
VECTORS = json.loads((ROOT / "conformance" / "vectors" / "names.json").read_text("utf-8"))
MAKERS: dict[str, Any] = {
    "slot": layout.slot_key, "ballots": layout.ballots_prefix, "tally": layout.tally_key,
    "members": layout.members_prefix, "markers": layout.markers_prefix, "checkpoint": layout.checkpoint_prefix,
    "inventory": layout.inventory_key, "manifest": layout.manifest_key, "hint": lambda: layout.HINT,
}  # fmt: skip


def cases(section: str) -> pytest.MarkDecorator:
    found = VECTORS[section]
    return pytest.mark.parametrize("case", found, ids=[ascii(case["name"]) for case in found])


# ---- the vectors -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("N1", "N7")
@cases("keys")
def test_keys(case):
    assert MAKERS[case["kind"]](*case["parts"]) == case["key"]


@pytest.mark.rule("N4", "N5")
@cases("markers")
def test_a_markers_name_tells_its_parts_and_the_parts_its_name(case):
    name = MarkerName(**case["parts"] | {"sum": int(case["parts"]["sum"], 16)})
    assert layout.marker_key(case["attempt"], case["step"], name) == case["key"]
    assert layout.parse_marker(case["key"]) == (case["step"], name)


@pytest.mark.rule("N1")
@cases("members")
def test_the_names_of_seats_and_farewells(case):
    make = layout.farewell_key if case["left"] else layout.seat_key
    assert make(case["attempt"], case["rank"], case["nonce"]) == case["key"]
    assert layout.parse_member(case["key"]) == MemberName(case["rank"], case["nonce"], case["left"])
    assert case["key"].startswith(layout.members_prefix(case["attempt"], case["rank"]))


@pytest.mark.rule("N10")
@cases("strangers")
def test_strangers_count_for_nothing(case):
    parse = {"marker": layout.parse_marker, "member": layout.parse_member}[case["as"]]
    assert parse(case["key"]) is None


@pytest.mark.rule("N1")
@cases("order")
def test_byte_order_is_the_order_meant(case):
    keys = [key.encode() for key in case["keys"]]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)


@pytest.mark.rule("N4")
@cases("where")
def test_where_a_checkpoint_lies_in_eight_digits(case):
    assert layout.where(case["path"], case["kind"]) == case["where"]


@pytest.mark.rule("N6")
@cases("fingerprints")
def test_fingerprints(case):
    assert layout.fingerprint(map(tuple, case["files"])) == int(case["sum"], 16)


@pytest.mark.rule("N8", "N9")
@cases("paths")
def test_paths_that_a_checkpoint_may_hold(case):
    layout.check_path(case["path"], prefix_bytes=case["prefix_bytes"])
    assert layout.is_data(case["path"])


@pytest.mark.rule("N8", "N9")
@cases("paths_refused")
def test_paths_that_are_refused_with_their_value(case):
    with pytest.raises(InvalidInput) as problem:
        layout.check_path(case["path"], prefix_bytes=case["prefix_bytes"])
    assert repr(case["path"])[1:20] in str(problem.value) or repr(case["path"].split("/")[1])[1:20] in str(
        problem.value
    )


# ---- beyond them -----------------------------------------------------------------------------------------------------

steps, attempts, ranks = st.integers(0, 10**16 - 1), st.integers(0, 10**6 - 1), st.integers(0, 10**6 - 1)


@st.composite
def marker_names(draw):
    first, last = sorted((draw(ranks), draw(ranks)))
    status = draw(st.sampled_from(records.STATUSES))

    def hexes(n: int) -> str:
        return f"{draw(st.integers(0, 16**n - 1)):0{n}x}"

    where = hexes(8) if status == "saved" or draw(st.booleans()) else "-"
    files, size, total = draw(st.tuples(st.integers(0, 10**6), st.integers(0, 2**62), st.integers(0, 2**64 - 1)))
    return MarkerName(first, last, status, where, files, size, total, hexes(8), hexes(32))


@pytest.mark.rule("N4", "N5")
@settings(max_examples=50, deadline=None)
@given(attempts, steps, marker_names())
def test_any_marker_name_survives_its_key(attempt, step, name):
    key = layout.marker_key(attempt, step, name)
    assert layout.parse_marker(key) == (step, name)
    assert key.startswith(layout.markers_prefix(attempt, step))
    assert len(key) <= 255 and key.isascii() and key == key.lower()


@pytest.mark.rule("N1")
@settings(max_examples=50, deadline=None)
@given(st.tuples(attempts, steps, ranks), st.tuples(attempts, steps, ranks))
def test_number_order_is_byte_order_everywhere(one, other):
    def marker(place: tuple[int, int, int]) -> str:
        attempt, step, rank = place
        return layout.marker_key(attempt, step, MarkerName(rank, rank, "empty", "-", 0, 0, 0, "0" * 8, "0" * 32))

    assert (marker(one) < marker(other)) == (one < other)
    assert (layout.checkpoint_prefix(*one[1::-1]) < layout.checkpoint_prefix(*other[1::-1])) == (
        one[1::-1] < other[1::-1]
    )
    assert (layout.slot_key(one[0]) < layout.slot_key(other[0])) == (one[0] < other[0])
    assert (layout.seat_key(one[0], one[2], "0") < layout.seat_key(other[0], other[2], "0")) == (one[::2] < other[::2])


@pytest.mark.rule("N1")
@settings(max_examples=50, deadline=None)
@given(attempts, steps, steps, marker_names())
def test_listing_after_a_step_begins_with_the_next_one(attempt, step, other, name):
    after = layout.markers_after(attempt, step)
    assert (layout.marker_key(attempt, other, name) > after) == (other > step)


@pytest.mark.rule("N2")
def test_prefixes_end_where_a_name_ends():
    prefixes = [
        layout.ballots_prefix(layout.slot_key(1)), layout.members_prefix(1), layout.markers_prefix(1),
        layout.markers_prefix(1, 5), layout.checkpoint_prefix(5, 1), layout.MEMBERS, layout.OURS,
    ]  # fmt: skip
    assert [prefix for prefix in prefixes if not prefix.endswith("/")] == []
    assert not layout.seat_key(1, 30, "0" * 16).startswith(layout.members_prefix(1, 3))
    assert not layout.ballots_prefix(layout.slot_key(10)).startswith(layout.ballots_prefix(layout.slot_key(1)))


@pytest.mark.rule("N5")
def test_the_same_word_has_the_same_name_and_another_word_another():
    def word(**more: Any) -> tuple[MarkerName, bytes]:
        fact = records.FileFact(path="a", size=5, digest="0" * 64)
        fields: dict[str, Any] = {
            "attempt": 1, "step": 5, "first_rank": 3, "last_rank": 3, "seats": ("0123456789abcdef",), "status": "saved",
            "host": "h", "pid": 1, "path": "p/", "adopted": False, "kind": "files", "metadata": {}, "files": (fact,),
            "metrics": {}, "durations_s": {}, "cause": "", "version": "0",
        }  # fmt: skip
        marker = records.Marker(**fields | more)
        body = records.canonical(marker)
        return inventory.name_of(marker, body), body

    assert word() == word()
    assert word()[0] == MarkerName(
        3, 3, "saved", layout.where("p/", "files"), 1, 5, layout.fingerprint([("a", 5)]), "01234567",
        records.sha256(word()[1])[:32],
    )  # fmt: skip
    assert len({word(**more)[0] for more in ({}, {"pid": 2}, {"metrics": {"a": 1}}, {"kind": "torch"})}) == 4


@pytest.mark.rule("N6")
@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.integers(0, 2**60), max_size=8), st.data())
def test_the_fingerprint_of_a_union_is_the_sum_in_any_order_and_split(files, data):
    pairs = data.draw(st.permutations(list(files.items())))
    cut = data.draw(st.integers(0, len(pairs)))
    whole = layout.fingerprint(files.items())
    assert whole == (layout.fingerprint(pairs[:cut]) + layout.fingerprint(pairs[cut:])) % 2**64
    for path, size in pairs:
        assert layout.fingerprint([*files.items(), (path, size)]) != whole
        assert layout.fingerprint((files | {path: size + 1}).items()) != whole


@pytest.mark.rule("N10", "B6")
def test_a_listed_name_that_is_not_unicode_stops_no_count():
    strange = layout.fingerprint([("a", 1), ("caf\udce9", 2)])
    assert strange not in (layout.fingerprint([("a", 1)]), layout.fingerprint([("a", 1), ("caf\udce8", 2)]))


@pytest.mark.rule("N7", "N8")
def test_what_is_data():
    assert [path for path in ("a", "_tallymark/x", "sub/", "_tallymark", "a/_tallymark/x") if layout.is_data(path)] == [
        "a", "_tallymark", "a/_tallymark/x",
    ]  # fmt: skip


@pytest.mark.rule("N8")
@pytest.mark.parametrize("path", [".tallymark-x", "a/.tallymark-x/b"])
def test_names_of_files_in_the_making_are_ours(path):
    with pytest.raises(InvalidInput, match=r"\.tallymark-"):
        layout.check_path(path)


@pytest.mark.parametrize("step", [0, 10**13, 10**16 - 1, numpy.int64(10), numpy.uint8(3), numpy.array(10)], ids=repr)
def test_steps(step):
    found = layout.check_step(step)
    assert found == int(step) and type(found) is int


@pytest.mark.parametrize(
    "step",
    ["10", -1, 1.5, 10.0, True, 10**16, None, 10**5000, -(10**5000), numpy.float64(10), numpy.bool_(True),
        numpy.int64(-1),
     numpy.array([10]), numpy.array(1.5), numpy.timedelta64(10, "s"), numpy.array([1, 2]), b"1"],
    ids=lambda step: f"{type(step).__name__}-{step!s:.20}" if not isinstance(step,
    int) or abs(step) < 10**20 else "huge",
)  # fmt: skip
def test_what_is_no_step_is_refused_with_its_value(step):
    with pytest.raises(InvalidInput, match=r"step="):
        layout.check_step(step)
