"""Records and users' values, and their bytes (docs/spec/records.md).

Users' values are written in a typed notation, since plain JSON cannot say NaN: ["null"], ["bool", true],
["int", "12"], ["float", "-0.0"], ["str", "a"], ["list", [...]], ["map", [[key, value], ...]].
"""

from __future__ import annotations

import json
from typing import Any

from cases.plain import canonical

ZERO, ONES = "0" * 64, "1" * 64
NONCE = "0123456789abcdef"
USER: list[dict[str, Any]] = []
USER_REFUSED: list[dict[str, Any]] = []
USER_UNREADABLE: list[dict[str, Any]] = []
RECORDS: list[dict[str, Any]] = []
READABLE: list[dict[str, Any]] = []
REFUSED: list[dict[str, Any]] = []
SECTIONS = {
    "user_values": USER, "user_values_refused": USER_REFUSED, "user_bytes_refused": USER_UNREADABLE,
    "records": RECORDS, "readable": READABLE, "refused": REFUSED,
}  # fmt: skip


def user(name: str, value: Any, text: str, rule: str = "C6") -> None:
    """A value of a user under the key `v`, and the bytes of the mapping."""
    USER.append({"name": name, "rule": rule, "value": ["map", [["v", value]]], "bytes": f'{{"v":{text}}}'})


user("nothing", ["null"], "null")
user("true", ["bool", True], "true")
user("false", ["bool", False], "false")
user("zero", ["int", "0"], "0")
user("minus one", ["int", "-1"], "-1")
user("2^53", ["int", "9007199254740992"], "9007199254740992")
user("2^53 + 1", ["int", "9007199254740993"], '{"$int":"9007199254740993"}')
user("-2^53", ["int", "-9007199254740992"], "-9007199254740992")
user("-2^53 - 1", ["int", "-9007199254740993"], '{"$int":"-9007199254740993"}')
user("2^70", ["int", "1180591620717411303424"], '{"$int":"1180591620717411303424"}')
user("640 digits", ["int", "9" * 640], '{"$int":"' + "9" * 640 + '"}')
user("one, a float", ["float", "1.0"], "1.0")
user("a float as large as 2^53", ["float", "9007199254740992.0"], "9007199254740992.0")
user("minus zero", ["float", "-0.0"], "-0.0")
user("a tenth", ["float", "0.1"], "0.1")
user("1e308", ["float", "1e308"], "1e+308")
user("1e16", ["float", "1e16"], "1e+16")
user("1e15", ["float", "1e15"], "1000000000000000.0")
user("0.0001", ["float", "0.0001"], "0.0001")
user("0.00001", ["float", "0.00001"], "1e-05")
user("the smallest float", ["float", "5e-324"], "5e-324")
user("NaN", ["float", "nan"], '{"$float":"nan"}')
user("infinity", ["float", "inf"], '{"$float":"inf"}')
user("minus infinity", ["float", "-inf"], '{"$float":"-inf"}')
user("no text", ["str", ""], '""')
user("text that looks like NaN", ["str", "nan"], '"nan"')
user("text beyond ASCII", ["str", "\u00e4\u4e2d\U0001f600"], '"\u00e4\u4e2d\U0001f600"', "C1")
user("text with escapes", ["str", 'a"b\\c\n\t\x00\x7f/'], '"a\\"b\\\\c\\n\\t\\u0000\x7f/"', "C1")
user("an empty list", ["list", []], "[]")
user("a list of all kinds", ["list", [["null"], ["int", "1"], ["float", "1.0"], ["str", "1"]]], '[null,1,1.0,"1"]')
user("NaN in a list in a mapping", ["map", [["a", ["list", [["float", "nan"]]]]]], '{"a":[{"$float":"nan"}]}')
user("an empty mapping", ["map", []], "{}")
user("keys are sorted by code point", ["map", [["b", ["int", "1"]], ["a", ["int", "2"]], ["B", ["int", "3"]],
     ["\u00e4", ["int", "4"]], ["\uffff", ["int", "5"]], ["\U0001f600", ["int", "6"]], ["", ["int", "7"]]]],
     '{"":7,"B":3,"a":2,"b":1,"\u00e4":4,"\uffff":5,"\U0001f600":6}', "C1")  # fmt: skip
user("a key that looks like our tag", ["map", [["$float", ["str", "nan"]]]], '{"$$float":"nan"}')
user("a key that looks like our other tag", ["map", [["$int", ["str", "1"]]]], '{"$$int":"1"}')
user("a dollar", ["map", [["$", ["int", "1"]]]], '{"$$":1}')
user("two dollars", ["map", [["$$", ["int", "1"]]]], '{"$$$":1}')
user("a dollar inside", ["map", [["a$", ["int", "1"]]]], '{"a$":1}')
user("a key with a slash", ["map", [["eval/acc", ["float", "0.5"]]]], '{"eval/acc":0.5}')


def user_refused(name: str, value: Any, rule: str = "C7") -> None:
    USER_REFUSED.append({"name": name, "rule": rule, "value": value})


def nested(depth: int) -> Any:
    value: Any = ["int", "1"]
    for _ in range(depth):
        value = ["list", [value]]
    return ["map", [["v", value]]]


user_refused("a list is no mapping", ["list", []])
user_refused("text is no mapping", ["str", "loss"])
user_refused("nothing is no mapping", ["null"])
user_refused("half a surrogate pair", ["map", [["v", ["str", "\ud800"]]]])
user_refused("half a surrogate pair in a key", ["map", [["\udfff", ["int", "1"]]]])
user_refused("641 digits", ["map", [["v", ["int", "1" + "0" * 640]]]])
user_refused("641 digits, negative", ["map", [["v", ["int", "-1" + "0" * 640]]]])
user_refused("65 levels", nested(64))
USER.append(
    {"name": "64 levels", "rule": "C7", "value": nested(63), "bytes": '{"v":' + "[" * 63 + "1" + "]" * 63 + "}"}
)


def user_unreadable(name: str, text: str, rule: str = "C6") -> None:
    USER_UNREADABLE.append({"name": name, "rule": rule, "bytes": text})


user_unreadable("a tag that nobody knows", '{"v":{"$date":"2024"}}')
user_unreadable("a float that needs no tag", '{"v":{"$float":"1.0"}}')
user_unreadable("another spelling of NaN", '{"v":{"$float":"NaN"}}')
user_unreadable("a tag beside another key", '{"v":{"$float":"nan","a":1}}')
user_unreadable("an integer as a number", '{"v":{"$int":1}}')
for digits in ("", "1_0", " 1", "1 ", "+1", "0x1", "1.0", "01", "-", "--1", "\u0661", "1" + "0" * 640):
    user_unreadable(f"an integer spelled {digits[:8]!r}", json.dumps({"v": {"$int": digits}}, ensure_ascii=False))

HEAD = {
    "attempt": 1, "attempt_slot": 1, "base": None, "checkpoint": {"slot": 2, "step": 10, "attempt": 1},
    "report": {"slot": 2, "step": 10, "attempt": 1}, "finished": None, "attempts": 1, "commits": 1, "aborts": 0,
    "retired": 0,
}  # fmt: skip
ENTRY = {
    "format": "tallymark.entry/1", "run_id": NONCE * 2, "slot": 2, "prev": ZERO, "attempt": 1, "head": HEAD,
    "written_by": "h (pid 1)", "nonce": NONCE, "wall_time": "2024-05-01T12:00:00+00:00",
}  # fmt: skip
SAVED = {
    "path": "checkpoints/0000000000000010-000001/", "adopted": False, "kind": "files", "ranks": [[0, 1], [3, 3]],
    "files": 3, "bytes": 2**40,
}  # fmt: skip
FILE = {"path": "model/\u00e4.bin", "size": 0, "digest": ONES}
HINT = {"format": "tallymark.hint/1", "run_id": NONCE, "slot": 42}
SEAT = {
    "format": "tallymark.seat/1", "attempt": 1, "rank": 3, "nonce": NONCE, "host": "h", "pid": 7, "version": "0",
    "wall_time": "",
}  # fmt: skip
FAREWELL = {"format": "tallymark.farewell/1", "attempt": 1, "rank": 3, "nonce": NONCE, "last_step": None, "why": ""}
COMMIT = ENTRY | {
    "kind": "commit", "step": 10, "checkpoint": SAVED, "reporting_ranks": [[0, 3]],
    "metrics": {"loss": {"$float": "nan"}}, "tally_digest": ONES,
}  # fmt: skip
ATTEMPT = ENTRY | {
    "kind": "attempt", "launch_id": "job-1", "call": {"nonce": NONCE, "answers": [NONCE, NONCE]}, "world_size": 2,
    "barrier_timeout_s": 1800.0, "resume": 10, "base": {"slot": 2, "step": 10, "run_url": None, "run_id": None},
}  # fmt: skip
MARKER = {
    "format": "tallymark.marker/1", "attempt": 1, "step": 10, "first_rank": 2, "last_rank": 3, "seats": [NONCE, NONCE],
    "status": "saved", "host": "h", "pid": 7, "path": SAVED["path"], "adopted": False, "kind": "files",
    "metadata": {"note": "a"}, "files": [FILE], "metrics": {}, "durations_s": {"upload": 1.5}, "cause": "",
    "version": "0",
}  # fmt: skip
WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("Genesis", ENTRY | {"kind": "genesis", "registers": "create"}),
    ("Void", ENTRY | {"kind": "void", "void_slot": 1, "void_sha256": ONES, "why": "torn"}),
    ("Attempt", ATTEMPT),
    ("Attempt", ATTEMPT | {"call": None, "resume": "auto", "base": None}),
    ("Commit", COMMIT),
    ("Commit", COMMIT | {"checkpoint": None, "metrics": {}}),
    ("Abort", ENTRY | {"kind": "abort", "step": 10, "reason": "timeout", "ranks": [[3, 3]], "detail": "d",
                       "culprits": [{"rank": 3, "host": "h", "detail": "d"}]}),
    ("Retire", ENTRY | {"kind": "retire", "slots": [2, 3]}),
    ("Pin", ENTRY | {"kind": "pin", "commit_slot": 2, "name": "paper"}),
    ("Unpin", ENTRY | {"kind": "unpin", "commit_slot": 2, "name": "paper"}),
    ("Annotate", ENTRY | {"kind": "annotate", "commit_slot": 2, "metrics": {"a": [1, 1.0]}, "origin": "e"}),
    ("Finish", ENTRY | {"kind": "finish", "status": "done"}),
    ("Marker", MARKER),
    ("Marker", MARKER | {"path": None, "files": [], "status": "empty", "kind": ""}),
    ("Seat", SEAT),
    ("Farewell", FAREWELL),
    ("Farewell", FAREWELL | {"last_step": 10**16 - 1}),
    ("Hint", HINT),
    ("Ballot", {"format": "tallymark.ballot/1", "register": "journal/0000000001.json", "number": 1, "proposer": NONCE,
                "phase": 2, "accepted": 1,  "value": '{"a":1}'}),
    ("InventoryHeader", {"format": "tallymark.inventory/1", "run_id": NONCE, "slot": 2, "step": 10, "attempt": 1,
                         "path": SAVED["path"], "ranks": 1, "files": 1}),
    ("InventoryRank", {"rank": 3, "host": "h", "kind": "files", "metadata": {}, "metrics": {},
    "durations_s": {"a": 1.0}}),
    ("InventoryFile", FILE | {"ranks": [[0, 3]]}),
    ("InventoryFile", {"path": "a", "size": 1, "digest": None, "ranks": [[0, 0], [2, 2]]}),
]  # fmt: skip
for kind, fields in WHOLE:
    RECORDS.append(
        {"name": f"a whole {kind}", "rule": "C1", "record": kind, "bytes": canonical(fields), "fields": fields}
    )
RECORDS.append({
    "name": "a hint, by hand", "rule": "C1", "record": "Hint", "fields": HINT,
    "bytes": '{"format":"tallymark.hint/1","run_id":"0123456789abcdef","slot":42}',
})  # fmt: skip


def readable(name: str, kind: str, text: str, fields: dict[str, Any]) -> None:
    """Not what we would write, but read all the same."""
    READABLE.append({"name": name, "rule": "C4", "record": kind, "bytes": text, "fields": fields})


def without(fields: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != key}


readable("a field of a later version", "Hint", canonical(HINT | {"zone": {"a": [1, None]}}), HINT)
readable("a field of a later version in the head", "Commit", canonical(COMMIT | {"head": HEAD | {"new": 1}}), COMMIT)
readable(
    "a field of a later version in a marker's file",
    "Marker",
    canonical(MARKER | {"files": [FILE | {"crc": "a"}]}),
    MARKER,
)
readable("an attempt without a call", "Attempt", canonical(without(ATTEMPT, "call")), ATTEMPT | {"call": None})
readable(
    "spaces and another order",
    "Hint",
    ' {"slot": 42,\n "run_id": "0123456789abcdef", "format": "tallymark.hint/1"} ',
    HINT,
)
readable("escapes", "Hint", canonical(HINT).replace("hint", "h\\u0069nt"), HINT)


def refused(name: str, rule: str, kind: str, text: str | bytes) -> None:
    body = {"hex": text.hex()} if isinstance(text, bytes) else {"bytes": text}
    REFUSED.append({"name": name, "rule": rule, "record": kind} | body)


hint = canonical(HINT)
refused("no bytes", "C2", "Hint", "")
refused("a space", "C2", "Hint", " ")
refused("torn", "C2", "Hint", hint[:-1])
refused("two records", "C2", "Hint", hint + hint)
refused("something after it", "C2", "Hint", hint + "x")
refused("bytes that are not UTF-8", "C2", "Seat", canonical(SEAT).encode().replace(b'"h"', b'"\xff"'))
refused("a byte order mark", "C2", "Hint", b"\xef\xbb\xbf" + hint.encode())
refused("UTF-16", "C2", "Hint", hint.encode("utf-16"))
refused("a key that appears twice", "C2", "Hint", hint[:-1] + ',"slot":42}')
refused("an unknown key that appears twice", "C2", "Hint", hint[:-1] + ',"x":1,"x":1}')
refused(
    "a key that appears twice, far inside", "C2", "Annotate", canonical(WHOLE[10][1]).replace('{"a":', '{"a":1,"a":')
)
refused("a key that appears twice, once escaped", "C2", "Hint", hint[:-1] + ',"sl\\u006ft":42}')
for word in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "nan", "0x1", "01", "+1", "1.", ".5", "'a'", "[1,]"):
    refused(f"{word} as a value", "C2", "Hint", hint[:-1] + f',"x":{word}}}')
refused("half a surrogate pair, escaped", "C2", "Hint", hint[:-1] + ',"x":"\\ud800"}')
refused("half a surrogate pair in a key, escaped", "C2", "Hint", hint[:-1] + ',"\\udc00":1}')
for text in ("null", "1", '"tallymark.hint/1"', "[]", f"[{hint}]", "{}"):
    refused(f"{text[:20]} is no record", "C3", "Hint", text)
for found in (
    "tallymark.hint/2",
    "tallymark.hint/1.0",
    "tallymark.hint",
    "tallymark.seat/1",
    "Tallymark.hint/1",
    "hint/1",
    "",
    None,
    1,
):
    refused(f"the format {found!r}", "C3", "Hint", canonical(HINT | {"format": found}))
refused("no format", "C3", "Hint", canonical(without(HINT, "format")))
refused("no format in an entry", "C3", "Commit", canonical(without(COMMIT, "format")))
refused("an entry of a newer format", "C3", "Commit", canonical(COMMIT | {"format": "tallymark.entry/2"}))
refused(
    "an inventory of a newer format",
    "C3",
    "InventoryHeader",
    canonical(dict(WHOLE)["InventoryHeader"] | {"format": "tallymark.inventory/2"}),
)
refused("a kind that nobody knows", "C4", "Commit", canonical(COMMIT | {"kind": "merge"}))
refused("a kind in capitals", "C4", "Commit", canonical(COMMIT | {"kind": "Commit"}))
refused("no kind", "C4", "Commit", canonical(without(COMMIT, "kind")))
refused("no slot", "C5", "Hint", canonical(without(HINT, "slot")))
for slot in ("42", 42.0, True, None, -1, 10**10, 10**30, 42.5, [42]):
    refused(f"slot {slot!r}", "C5", "Hint", canonical(HINT | {"slot": slot}))
for nonce in ("", "0" * 15, "0" * 33, "ABCDEF0123456789", "0123456789abcdeg", NONCE + "\n", "\n" + NONCE, 5):
    refused(f"nonce {nonce!r}", "C5", "Seat", canonical(SEAT | {"nonce": nonce}))
for step in ("10", -1, 1.5, 10.0, True, 10**16):
    refused(f"step {step!r}", "C5", "Commit", canonical(COMMIT | {"step": step}))
for digest in ("", "0" * 63, "0" * 65, "A" * 64, ZERO + "\n"):
    refused(
        f"a tally digest of {len(digest)} characters: {digest[:2]!r}",
        "C5",
        "Commit",
        canonical(COMMIT | {"tally_digest": digest}),
    )
for size in (0, -1, 10**6 + 1, 2.0, "4"):
    refused(f"world size {size!r}", "C5", "Attempt", canonical(ATTEMPT | {"world_size": size}))
for timeout in (0, 0.0, -1.0, "60", None, True):
    refused(f"time-out {timeout!r}", "C5", "Attempt", canonical(ATTEMPT | {"barrier_timeout_s": timeout}))
for ranks in ([[0]], [[0, 1, 2]], [0, 1], [["0", "1"]], [[0, 10**6]], [[-1, 0]], None):
    refused(f"ranks {ranks!r}", "C5", "Abort", canonical(WHOLE[6][1] | {"ranks": ranks}))
for resume in (True, 1.0, None, -1, 10**16):
    refused(f"resume {resume!r}", "C5", "Attempt", canonical(ATTEMPT | {"resume": resume}))
refused("metrics that are a list", "C5", "Commit", canonical(COMMIT | {"metrics": []}))
refused("a file of a negative size", "C5", "Marker", canonical(MARKER | {"files": [FILE | {"size": -1}]}))
refused("a head without its counts", "C5", "Commit", canonical(COMMIT | {"head": without(HEAD, "commits")}))
