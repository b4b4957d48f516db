"""From what a person writes to a store: every spelling of a place meets at one root, or is refused.

Rules a change must keep:
- Two spellings of one place give one root, or one of them is refused here, before anything is written.
- In an object store's URL every character after the bucket is literal: `?`, `#` and `%41` are parts of a key.
- A URL that may carry a credential is never echoed, not in part either.
- Nothing is imported for a backend that was not asked for, and no store is spoken to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, cast

from tallymark.errors import InvalidInput
from tallymark.store.local import LocalStore
from tallymark.store.memory import MemoryStore
from tallymark.store.port import RunStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)")
_DRIVE = re.compile(r"[A-Za-z]:|\\\\")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_PORT = (
    *("url", "creates_exclusively", "all_clients_create", "lists_in_order", "visibility_delay_s"),
    *("read", "create", "put", "list", "delete", "upload", "download", "open", "size", "local_path"),
)
_KNOWN = "a local path, file:///path, memory://name, or s3://bucket/prefix (pip install 'tallymark[s3]')"


def open_store(
    url_or_path: str | os.PathLike[str] | None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    store: Any = None,
) -> RunStore:
    """The store for a run at this place. Nothing is read, written or connected yet.

    `store` may be a ready store, which is returned as it is whatever the URL, or an fsspec filesystem object, which
    is only looked at: a private instance is made from its class and options, with the URL as the path in it.
    Raises InvalidInput.
    """
    if store is not None:
        if storage_options:
            raise InvalidInput("give storage_options or store, not both: a store brings its own options")
        if all(hasattr(store, name) for name in _PORT):
            return cast(RunStore, store)
        return _open_filesystem(_text_of(url_or_path), store)
    text = _text_of(url_or_path)
    scheme, rest = _split(text)
    if scheme in ("s3", "s3a"):
        return _open_s3(rest, storage_options=storage_options)
    if storage_options:
        raise InvalidInput(f"storage_options mean nothing for {text!r}: leave them out, or give an s3:// URL")
    if scheme == "memory":
        return MemoryStore(_memory_name(rest, text))
    return LocalStore(_local_root(rest, text))


def _text_of(given: str | os.PathLike[str] | None) -> str:
    try:
        text = os.fspath(given)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(f"{type(given).__name__} is not a place for a run: give {_KNOWN}") from None
    if not isinstance(text, str):
        raise InvalidInput(f"a path of type {type(text).__name__} is not a place for a run: give a str or pathlib.Path")
    if not text.strip():
        raise InvalidInput(f"{text!r} is not a place for a run: give {_KNOWN}")
    if "\0" in text:
        raise InvalidInput("the place for a run has a NUL character in it: leave it out")
    if isinstance(given, os.PathLike) and (match := _SCHEME.match(text)):
        raise InvalidInput(f"a path that begins with {match[0]!r} was a URL once: give it as a str, not as a Path")
    return text


def _split(text: str) -> tuple[str, str]:
    """The scheme ("file" for a plain path) and what follows it."""
    match = _SCHEME.match(text)
    if match is None:
        if _DRIVE.match(text):
            raise InvalidInput(f"{text!r} is a Windows path, and this is not Windows: give {_KNOWN}")
        if text.lower().startswith(("file:", "s3:", "memory:")):
            raise InvalidInput(f"{text!r} is no whole URL: give {_KNOWN}, or ./{text} for a folder of that name")
        return "file", text
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme not in ("file", "memory", "s3", "s3a"):
        # The rest may hold a signature or a password.
        raise InvalidInput(f"{match[0]}... is not a kind of store that tallymark knows: give {_KNOWN}")
    if scheme == "file":
        return scheme, _path_of_file_url(rest if match[2] == "//" else "/" + rest, text)
    if match[2] != "//":
        raise InvalidInput(f"a URL begins with {scheme}://, not with {match[0]!r}")
    return scheme, rest


def _path_of_file_url(rest: str, text: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise InvalidInput(f"{_shown(text)} names a host, not a path: write file:///absolute/path with three slashes")
    if re.search(r"%[0-9A-Fa-f]{2}", path):
        # Some libraries decode it and some do not: two places.
        raise InvalidInput(f"{text!r} has a %-code in it, which can be read in two ways: give the path itself")
    return "/" + path


def _local_root(path: str, text: str) -> str:
    expanded = os.path.expanduser(path) if path.startswith("~") else path
    if expanded.startswith("~"):
        raise InvalidInput(f"the home folder in {text!r} is not known: give an absolute path, or ./~... for a real '~'")
    root = os.path.realpath(expanded)
    if os.path.exists(root) and not os.path.isdir(root):
        raise InvalidInput(f"{text!r} is a file: give a folder for the run, which need not exist yet")
    return root


def _memory_name(rest: str, text: str) -> str:
    name = rest.strip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidInput(f"{text!r} names no store in memory: write memory://name, without empty, '.' or '..' parts")
    return name


def _open_s3(path: str, *, storage_options: Mapping[str, Any] | None = None, filesystem: Any = None) -> RunStore:
    bucket, _, prefix = path.partition("/")
    if ":" in bucket or "@" in bucket:
        raise InvalidInput(
            "an s3:// URL begins with the name of a bucket, and this one has ':' or '@' there: if these are "
            "credentials, take them out and pass storage_options={'key': ..., 'secret': ...}; ARNs are not supported"
        )
    if not bucket:
        raise InvalidInput(f"'s3://{path}' names no bucket: write s3://bucket/prefix")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidInput(f"{bucket!r} cannot be the name of a bucket: write s3://bucket/prefix")
    prefix = prefix.rstrip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise InvalidInput(f"'s3://{path}' has an empty, '.' or '..' part: object stores do not resolve these")
    from tallymark.store.fsspec import FsspecStore

    return FsspecStore(f"{bucket}/{prefix}", storage_options=storage_options, filesystem=filesystem)


def _open_filesystem(text: str, filesystem: Any) -> RunStore:
    protocol = getattr(filesystem, "protocol", None)
    protocols = {protocol} if isinstance(protocol, str) else set(protocol or ())
    if not protocols or not hasattr(filesystem, "storage_options"):
        raise _unknown_store(filesystem)
    match = _SCHEME.match(text)
    if match and match[1].lower() not in protocols:
        raise InvalidInput(f"the URL begins with {match[0]}, but the store is a {type(filesystem).__name__}")
    if "s3" in protocols:
        return _open_s3(text[match.end() :] if match else text.lstrip("/"), filesystem=filesystem)
    if "file" in protocols:
        return LocalStore(_local_root(_split(text)[1], text))
    raise _unknown_store(filesystem)


def _unknown_store(store: Any) -> InvalidInput:
    return InvalidInput(
        f"a store of type {type(store).__name__} is not known: give an s3fs.S3FileSystem, or an object with the "
        "methods of tallymark.store.port.RunStore"
    )


def _shown(text: str) -> str:
    """The URL, or no more than its scheme if there may be a credential in it."""
    return repr(text) if "@" not in text else repr(text.partition("://")[0] + "://...")
