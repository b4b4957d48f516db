"""The few mechanical pieces that cases share: canonical bytes, digests, and where things lie."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(files: list[tuple[str, int]]) -> int:
    return sum(int(sha256(f"{path}\0{size}")[:16], 16) for path, size in files) % 2**64


def folder(step: int, attempt: int) -> str:
    return f"checkpoints/{str(step).zfill(16)}-{str(attempt).zfill(6)}/"
