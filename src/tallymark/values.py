"""Users' values: metrics and metadata, made plain on the way in and themselves again on the way out.

Rules a change must keep:
- What `from_plain` returns equals what `to_plain` was given, type and all, but for tuples, which become lists.
- Anything that JSON cannot hold is refused here, by name, before a byte is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from tallymark import strict
from tallymark.errors import InvalidInput, RecordError

Plain: TypeAlias = dict[str, Any]
"""A user's mapping as `to_plain` made it."""

USER_BYTES_LIMIT = 1 << 20
_DEPTH_LIMIT = 64
_INT = re.compile(r"-?[1-9][0-9]{0,639}")  # 640 digits: what every Python can read, however its own limit is set


def to_plain(value: Any, name: str) -> Plain:
    """A user's mapping as strict JSON values that `from_plain` turns back into equal ones.

    Values may be None, bool, int, float, str, and lists, tuples and mappings of these; 0-dimensional numpy, torch or
    jax values become the Python scalar that they hold; tuples become lists. NaN, infinities and integers beyond 2**53
    are tagged, so that any JSON reader sees them whole. Raises InvalidInput, naming the place and the value.
    """
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a mapping with str keys, not {type(value).__name__}: {_show(value)}")
    plain: Plain = _plain(value, name, 0)
    size = len(strict.write(plain))
    if size > USER_BYTES_LIMIT:
        raise InvalidInput(f"{name} take {size} bytes as JSON; the limit is {USER_BYTES_LIMIT}. Write a file instead")
    return plain


def from_plain(value: Any) -> Any:
    """The user's value that `to_plain` encoded. Raises RecordError for what `to_plain` never writes."""
    return _user(value, 0)


def legible(text: str, limit: int) -> str:
    """At most `limit` characters of any text, in valid Unicode: what was half a character is spelled out."""
    return text[:limit].encode("utf-8", "backslashreplace").decode("utf-8")


def _user(value: Any, depth: int) -> Any:
    if depth > _DEPTH_LIMIT + 1:
        raise RecordError(f"a user's value is nested more than {_DEPTH_LIMIT} deep")
    if isinstance(value, list | tuple):
        return [_user(item, depth + 1) for item in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        [(key, text)] = value.items()
        if key == "$float" and text in ("nan", "inf", "-inf"):
            return float(text)
        if key == "$int" and isinstance(text, str) and _INT.fullmatch(text):
            return int(text)
    for key in value:
        if key.startswith("$") and not key.startswith("$$"):
            raise RecordError(f"{key!r:.80} is no tag that this version knows, or its value is malformed")
    return {(key[1:] if key.startswith("$$") else key): _user(item, depth + 1) for key, item in value.items()}


def _plain(value: Any, name: str, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        raise InvalidInput(f"{name:.200} is nested more than {_DEPTH_LIMIT} deep, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if abs(number) <= 2**53 else {"$int": _digits(number, name)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, Mapping):
        plain = {_key(key, name): _plain(item, f"{name}[{key!r}]", depth + 1) for key, item in value.items()}
        if len(plain) != len(value):
            raise InvalidInput(f"{name} has two keys of the same text")
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item, f"{name}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _plain(_scalar(value, name), name, depth)


def _scalar(value: Any, name: str) -> bool | int | float | str:
    """What a 0-dimensional array holds."""
    shape = getattr(value, "shape", None)
    what = f"{name} is a {type(value).__module__}.{type(value).__qualname__}"
    if not isinstance(shape, tuple) or shape or not callable(getattr(value, "item", None)):
        hint = f" of shape {tuple(shape)}: report a scalar, or write a file" if isinstance(shape, tuple) else ""
        advice = "" if hint else ": pass float(...) of it, or its parts as plain values"
        raise InvalidInput(f"{what}{hint}, not a plain value{advice}")
    try:
        item = value.item()
        if type(item) is type(value) and (item != item or float(item) == item):
            item = float(item)  # np.longdouble holds itself; taken if nothing is lost
        blank = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M") or bool(getattr(value, "mask", False))
    except Exception as problem:
        raise InvalidInput(f"{what} whose value cannot be had: {problem}") from problem
    if blank or not isinstance(item, bool | int | float | str):  # a masked number is none; a date is no count
        raise InvalidInput(f"{what} that holds no plain value: {_show(value)}. Convert it first")
    return item


def _key(key: Any, name: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"{name} has the key {_show(key)} of type {type(key).__name__}; keys must be str")
    text = _text(key, f"a key of {name}")
    return "$" + text if text.startswith("$") else text


def _text(value: str, name: str) -> str:
    text = str.__str__(value)  # a subclass's own __str__ may say something else: an enum's says its name
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise InvalidInput(f"{name} is not valid Unicode: {text!r:.80}") from problem
    return text


def _digits(number: int, name: str) -> str:
    if number.bit_length() > 2200 or not _INT.fullmatch(text := str(number)):
        raise InvalidInput(f"{name} is an integer of {number.bit_length()} bits: more than 640 digits cannot be kept")
    return text


def _show(value: Any) -> str:
    """The start of a value's repr, for a message about it."""
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - a message about a bad value must not fail on how bad it is
        return "(it has no repr)"
