"""A store behind an fsspec filesystem: s3fs now, others as further backends.

What this file alone knows: how the port is made from a backend's few calls, and how a filesystem is made ours.

Rules a change must keep:
- The filesystem is a private instance without a listings cache. A user's own object is only read: its class and its
  `storage_options` make ours. A cached listing hides what other clients wrote, and instances are shared otherwise.
- Every call checks the process first: after a fork the client's event loop has no thread, and would wait for ever.
- `storage_options` are handed on and forgotten. They are in no attribute, text, pickle or chained exception.
- What an error means is the backend's to say, from codes; never from the class that fsspec translated it to.
- fsspec and its clients are imported when a store is made, not before: they cost a process 80 to 450 ms.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from tallymark.errors import InvalidInput, StoreDenied, StoreError, UsageError
from tallymark.store.backend import Backend, Fault, Meaning, Piece
from tallymark.store.keys import check_key, check_prefix
from tallymark.store.port import Failed, Listed, Moved
from tallymark.store.publish import arriving
from tallymark.store.streams import RangeReader, SourceFailed, read_source

SINGLE_PUT_BYTES = 16 << 20
BLOCK_BYTES = 8 << 20
BUFFER_BYTES = 1 << 20

_SECRET_OPTION = re.compile(r"key|secret|token|pass|user|session|cred|auth|sse|cookie", re.IGNORECASE)


class FsspecStore:
    """Objects under `path` (`bucket` or `bucket/prefix`, taken literally) of an fsspec filesystem.

    Give `storage_options`, or a `filesystem` whose class and options are used for a private instance.
    Usable from any thread, also one with a running event loop; refused in a forked child, and never pickled.
    """

    __slots__ = ("__weakref__", "_backend", "_pid", "_prefix", "_secrets", "_url")

    def __init__(
        self,
        path: str,
        *,
        protocol: str = "s3",
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,
    ) -> None:
        bucket, _, prefix = path.strip("/").partition("/")
        if not bucket:
            raise InvalidInput(f"{path!r} names no bucket: give bucket/prefix")
        if prefix:
            check_key(prefix)
        self._url = f"{protocol}://{bucket}/{prefix}".rstrip("/")
        self._prefix = prefix + "/" if prefix else ""
        self._pid = os.getpid()
        options = dict(storage_options or {})
        if filesystem is not None:
            options = {**filesystem.storage_options, **options}
        # Kept only to be struck out of texts; see `_scrub`.
        self._secrets = _secrets_in(options)
        self._backend = self._make_backend(protocol, bucket, options, filesystem)

    def _make_backend(self, protocol: str, bucket: str, options: dict[str, Any], filesystem: Any) -> Backend:
        if protocol != "s3":
            raise InvalidInput(f"no backend for {protocol!r} yet: use s3")
        try:
            from tallymark.store.s3 import S3Backend
        except ImportError as exc:
            raise InvalidInput(f"{self._url} needs s3fs ({exc}): pip install 'tallymark[s3]'") from exc
        try:
            return S3Backend(bucket, options, like=filesystem)
        except Exception as exc:  # noqa: BLE001 - whatever the constructor dislikes was in the options
            why = f"{type(exc).__name__}: {exc}"
            raise InvalidInput(f"s3fs refused the storage_options of {self._url}: {self._scrub(why)}") from None

    def __repr__(self) -> str:
        return f"FsspecStore({self._url!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(f"{self!r} holds credentials and cannot be pickled or copied: open it anew where it is needed")

    @property
    def url(self) -> str:
        return self._url

    @property
    def creates_exclusively(self) -> bool:
        return self._backend.creates_exclusively

    @property
    def all_clients_create(self) -> bool:
        return False

    @property
    def lists_in_order(self) -> bool:
        return self._backend.lists_in_order

    @property
    def visibility_delay_s(self) -> float:
        return 0.0

    # -- records --

    def read(self, key: str) -> bytes | None:
        name = self._name(key)
        try:
            with self._raising("read", key, Meaning.ABSENT):
                return self._backend.get(name)
        except _Answered:
            return None

    def create(self, key: str, body: bytes) -> bool:
        name = self._name(key)
        try:
            with self._raising("create", key, Meaning.TAKEN):
                self._backend.put(name, bytes(body), exclusively=True)
        except _Answered:
            return False
        return True

    def put(self, key: str, body: bytes) -> None:
        name = self._name(key)
        with self._raising("put", key):
            self._backend.put(name, bytes(body), exclusively=False)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        check_prefix(prefix)
        self._check_process()
        return self._listing(prefix, after)

    def _listing(self, prefix: str, after: str) -> Iterator[Listed]:
        cut = len(self._prefix)
        start = self._prefix + after if after else ""
        with self._raising("list", prefix):
            self._check_process()
            for page in self._backend.pages(self._prefix + prefix, start):
                for name, size in page:
                    # Compared here too: a server may not know start-after, or hold things beside the prefix.
                    if name > start and name.startswith(self._prefix + prefix) and not name.endswith("/"):
                        yield Listed(name[cut:], size)
                self._check_process()

    def delete(self, keys: Sequence[str]) -> Sequence[Failed]:
        names = [self._name(key) for key in keys]
        failed: list[Failed] = []  # in the backend's names
        for start in range(0, len(names), 1000):
            with self._raising("delete", keys[start]):
                failed += self._backend.delete(names[start : start + 1000])
        return [Failed(name[len(self._prefix) :], self._scrub(why)) for name, why in failed]

    # -- files --

    def upload(self, source: Path, key: str) -> Moved:
        name = self._name(key)
        digest, sent = hashlib.sha256(), 0

        with open(source, "rb", buffering=0) as file:

            def block(wanted: int) -> bytes:
                nonlocal sent
                body = read_source(file, wanted)
                digest.update(body)
                sent += len(body)
                return body

            try:
                with self._raising("upload", key):
                    size = os.fstat(file.fileno()).st_size
                    if size <= SINGLE_PUT_BYTES:
                        self._backend.put(name, block(size), exclusively=False)
                    else:
                        self._backend.send(name, block, size)
            except SourceFailed as exc:
                raise exc.error from None
        return Moved(sent, digest.hexdigest())

    def download(self, key: str, target: Path) -> Moved:
        digest = hashlib.sha256()
        first = self._piece(key, 0, BLOCK_BYTES)
        with arriving(target) as out:
            piece, done = first, 0
            while True:
                out.write(piece.body)
                digest.update(piece.body)
                done += len(piece.body)
                if done >= first.total:
                    break
                piece = self._piece(key, done, min(done + BLOCK_BYTES, first.total), like=first)
        return Moved(done, digest.hexdigest())

    def open(self, key: str) -> BinaryIO:
        # One small request tells the size, whether the object exists, and which one it is.
        first = self._piece(key, 0, 1)

        def fetch(start: int, stop: int) -> bytes:
            return self._piece(key, start, stop, like=first).body

        return cast(BinaryIO, io.BufferedReader(RangeReader(fetch, first.total), BUFFER_BYTES))

    def size(self, key: str) -> int | None:
        name = self._name(key)
        try:
            with self._raising("look at", key, Meaning.ABSENT, looking=True):
                return self._backend.size(name)
        except _Answered:
            return None

    def local_path(self, key: str) -> Path | None:
        return None

    def _piece(self, key: str, start: int, stop: int, like: Piece | None = None) -> Piece:
        """Bytes of the object, all of them there; with `like`, of the same object as that piece was of."""
        name = self._name(key)
        try:
            with self._raising("read", key, Meaning.ABSENT):
                piece = self._backend.get_range(name, start, stop)
        except _Answered:
            raise FileNotFoundError(errno.ENOENT, f"no object in {self._url}", key) from None
        if like is not None and (piece.total, piece.tag) != (like.total, like.tag):
            raise StoreError(f"{key!r} in {self._url} was replaced while it was read", key=key, retryable=True)
        if len(piece.body) != max(0, min(stop, piece.total) - start):
            raise StoreError(f"{key!r} in {self._url} came with bytes missing", key=key, retryable=True)
        return piece

    # -- rules --

    def _name(self, key: str) -> str:
        self._check_process()
        check_key(key)
        return self._prefix + key

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self!r} was made in process {self._pid} and does not work after a fork: open the store anew in "
                f"process {os.getpid()}, or start processes with 'spawn'"
            )

    @contextlib.contextmanager
    def _raising(self, verb: str, key: str, answer: Meaning | None = None, *, looking: bool = False) -> Iterator[None]:
        """Turn what the client raises into our own errors; `answer` is no error, and raised as `_Answered`."""
        try:
            yield
        except (StoreError, UsageError, SourceFailed):
            raise
        except Exception as exc:  # Clients raise anything; the backend knows what it means.
            fault = self._backend.explain(exc, looking=looking)
            if fault.meaning is answer:
                raise _Answered from exc
            self._raise(verb, key, exc, fault)

    def _raise(self, verb: str, key: str, exc: Exception, fault: Fault) -> NoReturn:
        message = self._scrub(f"could not {verb} {key!r} in {self._url}: {fault.why}")
        # A cause whose own text would give a credential away is worse than none.
        cause = exc if self._scrub(repr(exc)) == repr(exc) else None
        if fault.meaning is Meaning.DENIED:
            raise StoreDenied(f"{message}; check the bucket and the credentials", key=key) from cause
        raise StoreError(message, key=key, retryable=fault.meaning is Meaning.PASSING) from cause

    def _scrub(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class _Answered(Exception):
    """The error was an answer: absent, or taken. Never seen outside."""


def _secrets_in(options: Mapping[str, Any], *, within: bool = False) -> tuple[str, ...]:
    """Values that must not be shown. Very short ones are left alone: striking them out would garble any text."""
    found: list[str] = []
    for name, value in options.items():
        secret = within or bool(_SECRET_OPTION.search(str(name)))
        if isinstance(value, Mapping):
            found += _secrets_in(value, within=secret and str(name) != "client_kwargs")
        elif secret and isinstance(value, str) and len(value) >= 8:
            found.append(value)
    return tuple(found)
