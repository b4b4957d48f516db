"""Reading local files that are to be sent, and remote objects by ranges.

Rules a change must keep:
- An error of the local file passes through as itself, never as one of the store: `Source` marks it on the way.
- A `RangeReader` keeps no bytes; the buffer around it does, and no more than that.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_ALL_BLOCK_BYTES = 8 << 20


class SourceFailed(Exception):
    """The file to upload could not be read; `error` says why, and is what the caller sees."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def read_source(file: BinaryIO, size: int) -> bytes:
    """Exactly `size` bytes, or fewer only at the end of the file. Raises `SourceFailed`."""
    parts = []
    try:
        while size > 0 and (part := file.read(size)):
            parts.append(part)
            size -= len(part)
    except OSError as exc:
        raise SourceFailed(exc) from exc
    return parts[0] if len(parts) == 1 else b"".join(parts)


class RangeReader(io.RawIOBase):
    """A seekable raw stream over `fetch(start, stop) -> bytes` of a known size."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}: before the start of the object")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        block = self._next(len(view))
        view[: len(block)] = block
        return len(block)

    def readall(self) -> bytes:
        # The default reads 8 KiB at a time, and each of them would be a request.
        blocks = []
        while block := self._next(READ_ALL_BLOCK_BYTES):
            blocks.append(block)
        return b"".join(blocks)

    def _next(self, size: int) -> bytes:
        stop = min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        block = self._fetch(self._at, stop)
        self._at += len(block)
        return block
