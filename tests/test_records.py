"""Records: canonical bytes, strict reading, users' values, and the published schemas."""

from __future__ import annotations

import collections
import enum
import importlib.util
import json
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark import records
from tallymark.errors import InvalidInput, RecordError

ROOT = Path(__file__).resolve().parents[1]
VECTORS = json.loads((ROOT / "conformance" / "vectors" / "records.json").read_text("utf-8"))
TYPES = {kind.__name__: kind for kind in records.PUBLISHED}
ENTRIES = {kind.__name__ for kind in records.ENTRY_TYPES}
SCHEMAS = ROOT / "docs" / "spec" / "schemas"


def cases(section: str) -> pytest.MarkDecorator:
    found = VECTORS[section]
    return pytest.mark.parametrize("case", found, ids=[case["name"] for case in found])


def untyped(value: list[Any]) -> Any:
    """The Python value of the vectors' typed notation."""
    match value:
        case ["null"]:
            return None
        case ["bool" | "str", plain]:
            return plain
        case ["int", text]:
            return int(text)
        case ["float", text]:
            return float(text)
        case ["list", items]:
            return [untyped(item) for item in items]
        case ["map", pairs]:
            return {key: untyped(item) for key, item in pairs}
    raise AssertionError(value)


def typed(value: Any) -> Any:
    """The value with its types, so that 1 and 1.0 and True differ, -0.0 and 0.0 too, and NaN is itself."""
    if isinstance(value, list | tuple):
        return ["list", [typed(item) for item in value]]
    if isinstance(value, dict):
        return ["map", sorted([key, typed(item)] for key, item in value.items())]
    return [type(value).__name__, repr(value)]


def body_of(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["hex"]) if "hex" in case else case["bytes"].encode()


# ---- the vectors -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("C1", "C6")
@cases("user_values")
def test_users_values_have_these_bytes_and_come_back(case):
    value = untyped(case["value"])
    body = records.canonical(records.to_plain(value, "metrics"))
    assert body == body_of(case)
    assert typed(records.from_plain(records.parse(body, "it"))) == typed(value)


@pytest.mark.rule("C7")
@cases("user_values_refused")
def test_users_values_that_are_refused(case):
    with pytest.raises(InvalidInput, match="metrics"):
        records.to_plain(untyped(case["value"]), "metrics")


@pytest.mark.rule("C6")
@cases("user_bytes_refused")
def test_users_values_that_nobody_could_have_written(case):
    with pytest.raises(RecordError):
        records.from_plain(records.parse(body_of(case), "it"))


@pytest.mark.rule("C1")
@cases("records")
def test_a_record_has_these_bytes_and_no_others(case):
    record = records.decode(body_of(case), TYPES[case["record"]], "it")
    assert msgspec.json.decode(msgspec.json.encode(record)) == case["fields"]
    assert records.canonical(record) == body_of(case)
    if case["record"] in ENTRIES:
        assert records.decode_entry(body_of(case), 2) == record


@pytest.mark.rule("C4")
@cases("readable")
def test_a_reader_passes_over_what_it_does_not_know(case):
    kind = TYPES[case["record"]]
    whole = records.decode(json.dumps(case["fields"]).encode(), kind, "it")
    assert records.decode(body_of(case), kind, "it") == whole
    if case["record"] in ENTRIES:
        assert records.decode_entry(body_of(case), 2) == whole


@pytest.mark.rule("C2", "C3", "C4", "C5")
@cases("refused")
def test_bytes_that_are_no_record_are_refused_and_named(case):
    with pytest.raises(RecordError, match="the thing"):
        records.decode(body_of(case), TYPES[case["record"]], "the thing")
    if case["record"] in ENTRIES:
        with pytest.raises(RecordError, match="journal slot 2"):
            records.decode_entry(body_of(case), 2)


@pytest.mark.rule("C2", "N3")
@cases("records")
def test_a_record_torn_at_any_byte_is_refused(case):
    body, kind = body_of(case), TYPES[case["record"]]
    for length in range(len(body)):
        with pytest.raises(RecordError):
            records.decode(body[:length], kind, "it")
        if case["record"] in ENTRIES:
            with pytest.raises(RecordError):
                records.decode_entry(body[:length], 2)


def test_the_vectors_are_what_the_cases_say_and_ask_nobody():
    script = ROOT / "conformance" / "make_vectors.py"
    done = subprocess.run([sys.executable, "-S", str(script), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "differ: none\n", "")


# ---- records ---------------------------------------------------------------------------------------------------------

HINT: dict[str, Any] = {"run_id": "0" * 16, "slot": 3}


class Kind(enum.IntEnum):
    THREE = 3


@pytest.mark.rule("C1")
def test_equal_records_have_equal_bytes():
    marker = records.decode(
        body_of(next(c for c in VECTORS["records"] if c["record"] == "Marker")), records.Marker, "it"
    )
    whole = msgspec.structs.replace(marker, durations_s={"upload": 2})
    assert whole == msgspec.structs.replace(marker, durations_s={"upload": 2.0})
    assert records.canonical(whole) == records.canonical(msgspec.structs.replace(marker, durations_s={"upload": 2.0}))
    assert records.canonical(records.Hint(**HINT | {"slot": Kind.THREE})) == records.canonical(records.Hint(**HINT))


@pytest.mark.rule("C5")
@pytest.mark.parametrize(
    "wrong",
    [{"slot": True}, {"slot": "3"}, {"slot": 3.0}, {"slot": -1}, {"slot": 10**10}, {"slot": None},
    {"slot": numpy.int64(3)},
     {"run_id": "no hex"}, {"run_id": "0" * 16 + "\n"}, {"format": "tallymark.hint/2"}],
    ids=repr,
)  # fmt: skip
def test_what_no_reader_would_believe_is_never_written(wrong):
    with pytest.raises(InvalidInput):
        records.canonical(records.Hint(**HINT | wrong))


@pytest.mark.rule("C2")
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "\ud800", object(), numpy.float32(1)], ids=lambda value: type(value).__name__
)
def test_what_json_cannot_hold_is_never_written(value):
    with pytest.raises(InvalidInput, match="strict JSON"):
        records.canonical({"a": value})


@pytest.mark.rule("C2", "C3")
@settings(max_examples=50, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from('{}[]":,\\u0-1eE. null"format""tallymark.hint/1"')).map("".join).map(str.encode)
)
def test_whatever_the_bytes_only_record_errors_come_out(body):
    for kind in (records.Hint, records.InventoryFile):
        with pytest.raises(RecordError):
            records.decode(body, kind, "it")
    with pytest.raises(RecordError):
        records.decode_entry(body, 0)


@pytest.mark.rule("C2")
@pytest.mark.parametrize("depth", [100, 900, 5_000, 100_000])
def test_deep_nesting_is_read_or_refused_but_breaks_nothing(depth):
    body = (
        b'{"format":"tallymark.hint/1","run_id":"0123456789abcdef","slot":1,"x":' + b"[" * depth + b"]" * depth + b"}"
    )
    try:
        assert records.decode(body, records.Hint, "it").slot == 1
    except RecordError:
        assert depth > 100
    try:
        value = records.parse(body, "it")
    except RecordError:
        return
    with pytest.raises(RecordError, match="nested"):
        records.from_plain(value)


@given(st.sets(st.integers(0, 40)))
def test_ranges_hold_exactly_the_ranks(ranks):
    ranges = records.to_ranges(ranks)
    assert records.from_ranges(ranges) == tuple(sorted(ranks))
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


# ---- users' values ---------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.integers(2**53 - 2, 2**53 + 2) | st.floats() | texts
keys = texts | st.sampled_from(["$", "$$", "$float", "$int", "$$float"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4))


@pytest.mark.rule("C1", "C6")
@settings(max_examples=50, deadline=None)
@given(st.dictionaries(keys, values, max_size=5))
def test_any_value_comes_back_equal_and_typed(value):
    body = records.canonical(records.to_plain(value, "metrics"))
    assert typed(records.from_plain(records.parse(body, "it"))) == typed(value)
    assert records.canonical(records.to_plain(dict(reversed(value.items())), "metrics")) == body


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Word(str, enum.Enum):  # noqa: UP042 - its str() says the name, not the value
    TRAIN = "train"


class Tensor:
    """Like a 0-dimensional tensor of torch or jax."""

    shape: Any = ()

    def __init__(self, held: Any) -> None:
        self.held = held

    def item(self) -> Any:
        if isinstance(self.held, Exception):
            raise self.held
        return self.held


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.rule("C7")
@pytest.mark.parametrize(
    ("given_", "plain"),
    [
        (numpy.bool_(True), True), (numpy.int8(-1), -1), (numpy.uint64(2**64 - 1), 2**64 - 1), (numpy.int64(10), 10),
        (numpy.float16(1.5), 1.5), (numpy.float32(0.5), 0.5), (numpy.float64(-0.0), -0.0), (numpy.str_("x"), "x"),
        (numpy.float32("nan"), float("nan")), (numpy.float64("-inf"), float("-inf")), (numpy.array(7), 7),
        (numpy.longdouble(1.5), 1.5), (numpy.longdouble("nan"), float("nan")), (numpy.longdouble("inf"), float("inf")),
        (numpy.array("x"), "x"), (numpy.array(3, dtype=object), 3), (Kind.THREE, 3), (Word.TRAIN, "train"),
        (Text("a"), "a"), (Tensor(0.25), 0.25), (Tensor(True), True), (Tensor(2**60), 2**60), (Pair(1, (2, 3)),
        [1, [2, 3]]),
        (collections.OrderedDict(b=1), {"b": 1}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_scalars_of_other_libraries_become_plain(given_, plain):
    value = records.from_plain(records.parse(records.canonical(records.to_plain({"v": given_}, "metrics")), "it"))
    assert typed(value) == typed({"v": plain})


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


itself: dict[str, Any] = {}
itself["again"] = [itself]


@pytest.mark.rule("C7")
@pytest.mark.parametrize(
    "value",
    [
        numpy.array([1.0]), numpy.zeros((2, 3)), numpy.array([]), numpy.datetime64("2024-01-01T00:00:00", "ns"),
        numpy.timedelta64(5, "ns"), numpy.datetime64("NaT"), numpy.array(5, dtype="timedelta64[ns]"),
            numpy.complex64(1),
        numpy.longdouble(1) / 3, numpy.bytes_(b"x"), numpy.void(b"x"), numpy.ma.masked, numpy.array({}, dtype=object),
        b"x", {1}, 1j, object(), object, range(3), iter([]), Rude(), itself, Tensor(RuntimeError("the device is gone")),
        Tensor([1.0]), Tensor(None), Tensor(Tensor(1.0)), 10**700, {"a": {1: 2}}, {("eval", "acc"): 1},
        {None: 1}, {True: 1},
        {10**5000: 1}, {Rude(): 1}, {Text("a"): 1, b"a": 2}, ["ok", {"deep": [object()]}],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_cannot_be_held_is_refused_by_name(value):
    with pytest.raises(InvalidInput, match=r"metrics\['v'\]"):
        records.to_plain({"v": value}, "metrics")


@pytest.mark.rule("C7")
def test_the_message_names_the_place_deep_inside():
    with pytest.raises(InvalidInput, match=r"metrics\['a'\]\[1\]\['b'\] .* shape \(2,\)"):
        records.to_plain({"a": [1, {"b": numpy.zeros(2)}]}, "metrics")


@pytest.mark.rule("C7")
def test_two_keys_of_one_text_are_refused():
    class Odd(str):
        __slots__ = ()
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(InvalidInput, match="two keys"):
        records.to_plain({Odd("a"): 1, Odd("a"): 2}, "metrics")


@pytest.mark.rule("C7")
def test_the_limit_of_a_mebibyte_is_exact():
    assert len(records.canonical(records.to_plain({"v": "x" * (2**20 - 8)}, "metrics"))) == records.USER_BYTES_LIMIT
    with pytest.raises(InvalidInput, match=r"1048577 bytes.*limit is 1048576"):
        records.to_plain({"v": "x" * (2**20 - 7)}, "metrics")


@pytest.mark.rule("C6")
def test_a_long_integer_is_read_wherever_it_was_written():
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        with pytest.raises(InvalidInput, match="640 digits"):
            records.to_plain({"v": 10**640}, "metrics")
        plain = records.to_plain({"v": 10**640 - 1}, "metrics")
        sys.set_int_max_str_digits(640)
        assert records.from_plain(plain) == {"v": 10**640 - 1}
    finally:
        sys.set_int_max_str_digits(before)


# ---- schemas ---------------------------------------------------------------------------------------------------------


@cache
def schema(kind: str) -> Any:
    """The validator of a kind of record, as published."""
    [content] = [found for path in SCHEMAS.glob("*.json") if (found := json.loads(path.read_text()))["title"] == kind]
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


def run_script(*arguments: str) -> int:
    found = importlib.util.spec_from_file_location("schemas_script", ROOT / "scripts" / "schemas.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script.main(arguments)


@pytest.mark.rule("C8")
def test_the_schemas_are_those_of_the_code(capsys):
    assert (run_script("--check"), capsys.readouterr().out) == (0, "")


@pytest.mark.rule("C8")
def test_a_schema_that_drifted_is_found(tmp_path):
    folder = ("--folder", str(tmp_path))
    assert [run_script("--check", *folder), run_script(*folder), run_script("--check", *folder)] == [1, 0, 0]
    (tmp_path / "hint.json").write_text("{}")
    assert [run_script("--check", *folder), run_script(*folder), run_script("--check", *folder)] == [1, 0, 0]
    (tmp_path / "left-over.json").write_text("{}")
    assert [run_script("--check", *folder), run_script(*folder), run_script("--check", *folder)] == [1, 0, 0]


@pytest.mark.rule("C8")
@pytest.mark.parametrize("kind", sorted(TYPES))
def test_what_is_written_is_valid_under_its_schema(kind):
    validator = schema(kind)
    assert ":" not in validator.schema["$id"].replace("urn:tallymark:", "") and "//" not in validator.schema["$id"]
    found = [case for case in VECTORS["records"] + VECTORS["readable"] if case["record"] == kind]
    assert found
    for case in found:
        validator.validate(json.loads(case["bytes"]))
        record = records.decode(body_of(case), TYPES[kind], "it")
        validator.validate(json.loads(records.canonical(record)))


@pytest.mark.rule("C8")
def test_the_entries_of_the_history_vectors_are_valid_too():
    validators = {kind.__struct_config__.tag: schema(kind.__name__) for kind in records.ENTRY_TYPES}
    journals = json.loads((ROOT / "conformance" / "vectors" / "history.json").read_text("utf-8"))["cases"]
    entries = [entry for case in journals for entry in case["entries"] if "kind" in entry]
    assert {entry["kind"] for entry in entries} == set(validators)
    for text in {json.dumps(entry) for entry in entries}:
        entry = json.loads(text)
        validators[entry["kind"]].validate(entry)


def judged(case: dict[str, Any]) -> bool:
    """A schema sees parsed values: torn bytes, a key twice, or 5.0 for 5 are out of its sight."""
    return case["rule"] != "C2" and case["name"] not in ("slot 42.0", "step 10.0", "world size 2.0", "resume 1.0")


JUDGED = [case for case in VECTORS["refused"] if judged(case)]


@pytest.mark.rule("C3", "C5", "C8")
@pytest.mark.parametrize("case", JUDGED, ids=[case["name"] for case in JUDGED])
def test_what_is_refused_is_not_valid_either(case):
    with pytest.raises(jsonschema.ValidationError):
        schema(case["record"]).validate(json.loads(body_of(case)))
