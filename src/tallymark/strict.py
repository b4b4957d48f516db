"""Strict JSON: the one way that bytes become plain values here, and plain values bytes.

Rules a change must keep:
- Written: UTF-8, keys sorted, no spaces, no NaN.
- Read: a duplicate key, a number out of range, half a surrogate pair or a torn text is a `RecordError`, never a guess.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from tallymark.errors import RecordError


def write(plain: object) -> bytes:
    """The canonical bytes of plain values. Raises ValueError, TypeError, RecursionError for what JSON cannot hold."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def sha256(body: bytes) -> str:
    """64 hex digits."""
    return hashlib.sha256(body).hexdigest()


def parse(body: bytes, what: str) -> Any:
    """Strict JSON, as plain values. `what` names the object in the error."""
    try:
        value = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
        if b"\\" in body:  # an escape may spell half a surrogate pair, which nobody could write again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except (ValueError, RecursionError) as problem:
        raise RecordError(f"{what}: not a whole JSON record ({problem})") from problem


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value
