"""What a key is: the one check that every adapter makes before it touches its store.

Rules a change must keep:
- A key that could leave the root, or that two stores would read differently, is refused by all of them alike.
- Nothing is escaped, folded or normalised here or later: the key that was given is the key that is used.
"""

from __future__ import annotations

from tallymark.errors import InvalidInput


def check_key(key: str) -> None:
    """Refuse what is not a key: empty, absolute, with a NUL, or with an empty, `.` or `..` part."""
    if not key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise InvalidInput(
            f"{key!r} is not a key: use a relative path with `/`, without NUL and without empty, '.' or '..' parts"
        )


def check_prefix(prefix: str) -> None:
    """Refuse what no key can start with. `""` is every key; the last part may be a part of a name."""
    folder = prefix.rpartition("/")[0]
    if folder:
        check_key(folder)
    if prefix.startswith("/") or "\0" in prefix:
        raise InvalidInput(f"{prefix!r} is not a prefix: keys are relative and have no NUL")
