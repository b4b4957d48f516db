"""Keys and their parts, fingerprints, and paths inside a checkpoint (docs/spec/names.md)."""

from __future__ import annotations

from typing import Any

from cases.plain import fingerprint, sha256

KEYS: list[dict[str, Any]] = []
MARKERS: list[dict[str, Any]] = []
MEMBERS: list[dict[str, Any]] = []
STRANGERS: list[dict[str, Any]] = []
ORDER: list[dict[str, Any]] = []
WHERE: list[dict[str, Any]] = []
PRINTS: list[dict[str, Any]] = []
PATHS: list[dict[str, Any]] = []
REFUSED: list[dict[str, Any]] = []
SECTIONS = {
    "keys": KEYS, "markers": MARKERS, "members": MEMBERS, "strangers": STRANGERS, "order": ORDER, "where": WHERE,
    "fingerprints": PRINTS, "paths": PATHS, "paths_refused": REFUSED,
}  # fmt: skip


def key(kind: str, parts: list[Any], text: str) -> None:
    KEYS.append({"name": f"{kind} of {parts}", "rule": "N1", "kind": kind, "parts": parts, "key": text})


key("slot", [0], "journal/0000000000.json")
key("slot", [42], "journal/0000000042.json")
key("slot", [10**10 - 1], "journal/9999999999.json")
key("ballots", ["journal/0000000042.json"], "ballots/journal/0000000042.json/")
key("tally", ["ab" * 32], "tallies/" + "ab" * 32 + ".txt")
key("members", [2], "members/000002/")
key("members", [2, 3], "members/000002/000003.")
key("markers", [2], "markers/000002/")
key("markers", [2, 500], "markers/000002/0000000000000500/")
key("checkpoint", [500, 2], "checkpoints/0000000000000500-000002/")
key("checkpoint", [10**16 - 1, 10**6 - 1], "checkpoints/9999999999999999-999999/")
key("inventory", [500, 2], "checkpoints/0000000000000500-000002/_tallymark/inventory.jsonl.gz")
key("manifest", [500, 2], "checkpoints/0000000000000500-000002/_tallymark/manifest.json")
key("hint", [], "hint.json")

NONCE, DIGEST = "0123456789abcdef", "00112233445566778899aabbccddeeff"
for rank, nonce, left, text in (
    (3, NONCE, False, f"members/000002/000003.{NONCE}.json"),
    (3, NONCE, True, f"members/000002/000003.{NONCE}.left.json"),
    (0, NONCE * 2, False, f"members/000002/000000.{NONCE}{NONCE}.json"),
    (999_999, NONCE + "0", True, f"members/000002/999999.{NONCE}0.left.json"),
):
    MEMBERS.append({"name": text, "rule": "N1", "attempt": 2, "rank": rank, "nonce": nonce, "left": left, "key": text})


def marker(first, last, status, where, files, size, total, key, *, attempt=2, step=500) -> None:
    parts = {
        "first": first, "last": last, "status": status, "where": where, "files": files, "bytes": size, "sum": total,
        "seat": "89abcdef", "digest": DIGEST,
    }  # fmt: skip
    MARKERS.append({"name": key[-90:], "rule": "N4", "attempt": attempt, "step": step, "parts": parts, "key": key})


P = "markers/000002/0000000000000500/"
marker(
    3,
    3,
    "saved",
    "0a1b2c3d",
    2,
    1000,
    "00000000000000ff",
    f"{P}000003-000003.saved.0a1b2c3d.2.1000.00000000000000ff.89abcdef.{DIGEST}.json",
)
marker(0, 7, "empty", "-", 0, 0, "0" * 16, f"{P}000000-000007.empty.-.0.0.0000000000000000.89abcdef.{DIGEST}.json")
marker(1, 1, "failed", "-", 0, 0, "0" * 16, f"{P}000001-000001.failed.-.0.0.0000000000000000.89abcdef.{DIGEST}.json")
marker(
    1,
    1,
    "failed",
    "0a1b2c3d",
    0,
    0,
    "0" * 16,
    f"{P}000001-000001.failed.0a1b2c3d.0.0.0000000000000000.89abcdef.{DIGEST}.json",
)
marker(999_999, 999_999, "saved", "ffffffff", 10**18, 9 * 10**18, "f" * 16,
       "markers/999999/9999999999999999/999999-999999.saved.ffffffff.1000000000000000000.9000000000000000000"
       f".{'f' * 16}.89abcdef.{DIGEST}.json",
       attempt=999_999, step=10**16 - 1)  # fmt: skip

GOOD = f"{P}000003-000003.saved.0a1b2c3d.2.1000.00000000000000ff.89abcdef.{DIGEST}.json"


def stranger(name: str, text: str, kind: str = "marker") -> None:
    STRANGERS.append({"name": name, "rule": "N10", "as": kind, "key": text})


for name, old, new in (
    ("a range that runs backwards", "000003-000003", "000003-000002"),
    ("a rank of five digits", "000003-000003", "00003-00003"),
    ("a rank of seven digits", "000003-000003", "0000003-0000003"),
    ("one rank only", "000003-000003", "000003"),
    ("a negative rank", "000003-000003", "-00003-000003"),
    ("an unknown status", "saved", "done"),
    ("a status in capitals", "saved", "SAVED"),
    ("saved, and it does not say where", "0a1b2c3d", "-"),
    ("a place of seven digits", "0a1b2c3d", "0a1b2c3"),
    ("a place in capitals", "0a1b2c3d", "0A1B2C3D"),
    ("a count with a leading zero", ".2.1000", ".02.1000"),
    ("a negative count", ".2.1000", ".-2.1000"),
    ("no count", ".2.1000", "..1000"),
    ("a count of twenty digits", ".2.1000", ".2.10000000000000000000"),
    ("a fraction of a byte", ".2.1000", ".2.1000.5"),
    ("a fingerprint of fifteen digits", "00000000000000ff", "0000000000000ff"),
    ("a whole nonce", "89abcdef", NONCE),
    ("a whole digest", DIGEST, DIGEST * 2),
    ("a shorter digest", DIGEST, DIGEST[:31]),
    ("another ending", ".json", ".json.tmp"),
    ("no ending", ".json", ""),
    ("a line feed at the end", ".json", ".json\n"),
    ("a space before", "markers/", " markers/"),
    ("a slash before", "markers/", "/markers/"),
    ("the run's own prefix", "markers/", "runs/a/markers/"),
    ("another folder", "markers/", "members/"),
    ("a folder in between", "000003-", "x/000003-"),
    ("a step of fifteen digits", "0000000000000500", "000000000000500"),
    ("a step of seventeen digits", "0000000000000500", "00000000000000500"),
    ("no attempt", "000002/", ""),
    ("an attempt of seven digits", "000002/", "0000002/"),
    ("digits of another script", "000003-", "\u0660\u0660\u0660\u0660\u0660\u0663-"),
):
    assert old in GOOD
    stranger(name, GOOD.replace(old, new, 1))
stranger("nothing", "")
stranger("a folder", P)
SEAT = f"members/000002/000003.{NONCE}.json"
for name, old, new in (
    ("a nonce of fifteen digits", NONCE, NONCE[1:]),
    ("a nonce of 33 digits", NONCE, NONCE * 2 + "0"),
    ("a nonce in capitals", NONCE, NONCE.upper()),
    ("a word that is not `left`", ".json", ".gone.json"),
    ("left twice", ".json", ".left.left.json"),
    ("a temporary file", ".json", ".json~"),
    ("a rank of five digits", "000003", "00003"),
    ("a line feed at the end", ".json", ".json\n"),
):
    stranger(name, SEAT.replace(old, new, 1), "member")
stranger("a marker is no member", GOOD, "member")
stranger("a member is no marker", SEAT)

STEPS = [0, 8, 9, 10, 99, 100, 99_999_999, 100_000_000, 10**13, 10**16 - 1]
ORDER.append({"name": "steps", "rule": "N1", "keys": [f"checkpoints/{step:016d}-000001/" for step in STEPS]})
ORDER.append(
    {
        "name": "attempts of a step",
        "rule": "N1",
        "keys": [f"checkpoints/{step:016d}-{n:06d}/" for step in (9, 10) for n in (1, 2, 10)],
    }
)
ORDER.append(
    {"name": "slots", "rule": "N1", "keys": [f"journal/{slot:010d}.json" for slot in (0, 9, 10, 99, 100, 10**9)]}
)
ORDER.append({
    "name": "what is listed after a step", "rule": "N1",
    "keys": [f"{P}999999-999999.saved", "markers/000002/00000000000005000", "markers/000002/0000000000000501/000000-"],
})  # fmt: skip

for path, kind in (
    ("checkpoints/0000000000000500-000002/", "files"),
    ("s3://b/x/", "files"),
    ("s3://b/x/", "torch"),
    ("", ""),
    ("\u00e4", "\u4e2d"),
):
    WHERE.append(
        {
            "name": f"{path!r} as {kind!r}",
            "rule": "N4",
            "path": path,
            "kind": kind,
            "where": sha256(f"{path}\0{kind}")[:8],
        }
    )


def fingerprints(name: str, *files: tuple[str, int]) -> None:
    total = format(fingerprint(list(files)), "016x")
    PRINTS.append({"name": name, "rule": "N6", "files": [list(file) for file in files], "sum": total})


PRINTS.append({"name": "no files", "rule": "N6", "files": [], "sum": "0" * 16})
fingerprints("one file", ("model.bin", 1000))
fingerprints("a file of no bytes", ("model.bin", 0))
fingerprints("two files", ("model.bin", 1000), ("optim.bin", 2000))
fingerprints("two files, the other way round", ("optim.bin", 2000), ("model.bin", 1000))
fingerprints("one file twice", ("model.bin", 1000), ("model.bin", 1000))
fingerprints("a sum that overflows", *((f"f{index}", index) for index in range(50)))
fingerprints("a name beyond ASCII", ("\u00e4/\u4e2d.bin", 2**50))

for path, prefix in (
    ("a", 0), ("a/b/c.bin", 0), (".hidden", 0), ("...", 0), ("a..b/.c.", 0), ("with space/+ %41#?*[]{}", 0),
    ("\u00e4\u4e2d\U0001f600", 0), ("x" * 255, 0), ("\u00e4" * 127, 0), ("a/" * 511 + "xx", 0), ("a", 1023),
    ("sub/_tallymark/x", 0), ("_tallymarks/x", 0), ("a\\b", 0), ("C:", 0), ("~", 0), ("-", 0),
):  # fmt: skip
    PATHS.append({"name": f"{path[:40]!r} after {prefix}", "rule": "N8", "path": path, "prefix_bytes": prefix})


def bad(path: str, rule: str = "N8", prefix: int = 0) -> None:
    REFUSED.append({"name": f"{path[:40]!r} after {prefix}", "rule": rule, "path": path, "prefix_bytes": prefix})


for path in (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "./a", "a/./b", "a/.", "//a", "a\0b", "a\nb",
    "a\tb", "a\x1fb", "a\x7fb", "a\x80b", "a\x9fb", "\ud800", "a/\udfff", "_tallymark/x", "_tallymark",
    "_tallymark/inventory.jsonl.gz",
):  # fmt: skip
    bad(path)
bad("x" * 256, "N9")
bad("a/" + "\u00e4" * 128 + "/b", "N9")
bad("a/" * 512 + "x", "N9")
bad("a", "N9", 1024)
bad("\u00e4" * 4, "N9", 1017)
