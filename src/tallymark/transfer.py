"""Moving a shard's files between a rank's own disk and the run.

Rules a change must keep:
- Everything that can be refused is refused by `scan`, before the first byte is sent.
- Digests are taken of the bytes that were sent or received, never in a second pass.
- The user's files are only read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tallymark import layout
from tallymark.errors import CheckpointDamaged, InvalidInput
from tallymark.parallel import each
from tallymark.records import FileFact, InventoryFile
from tallymark.register import Patience, retrying
from tallymark.store.port import Files

FILES_AT_ONCE = 4


class Local(NamedTuple):
    """A file on this machine, and its path inside the checkpoint."""

    path: str
    source: Path


def scan(source: Path, *, prefix_bytes: int) -> list[Local]:
    """The files of a folder, or the one file, that `source` names; in order of their paths.

    Hidden and empty files count; symbolic links are followed, and a link that leads back into itself is passed over.
    Raises FileNotFoundError, and InvalidInput for a folder without files, a name that no store may hold, and
    anything that is neither file nor folder.
    """
    if not source.exists():
        raise FileNotFoundError(f"there is no file or folder {str(source)!r} to save")
    files = sorted(_walk(source, "", frozenset())) if source.is_dir() else [Local(source.name, source)]
    if not files:
        raise InvalidInput(f"the folder {str(source)!r} holds no files; to save nothing, pass checkpoint=None")
    for file in files:
        layout.check_path(file.path, prefix_bytes=prefix_bytes)
        if not stat.S_ISREG(file.source.stat().st_mode):
            raise InvalidInput(f"{str(file.source)!r} is neither a file nor a folder")
    return files


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterable[Local]:
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = Path(entry.path)
        if path.is_dir():
            yield from _walk(path, f"{prefix}{entry.name}/", above | {here})
        elif path.is_symlink() and not path.exists():
            if not _loops(path):
                raise FileNotFoundError(f"the link {str(path)!r} leads nowhere")
        else:
            yield Local(prefix + entry.name, path)


def _loops(path: Path) -> bool:
    try:
        path.stat()
    except OSError as problem:
        return problem.errno == errno.ELOOP
    return False


def upload(files: Sequence[Local], store: Files, prefix: str, patience: Patience) -> tuple[FileFact, ...]:
    """Copy the files under `prefix`; what was sent of each. Raises StoreError, or OSError of a local file."""

    def send(file: Local) -> FileFact:
        moved = retrying(lambda: store.upload(file.source, prefix + file.path), patience)
        return FileFact(path=file.path, size=moved.size, digest=moved.digest)

    return tuple(each(send, files, limit=FILES_AT_ONCE))


def digests(files: Sequence[Local]) -> tuple[FileFact, ...]:
    """What `upload` would say of these files, without sending them."""
    facts = []
    for file in files:
        with file.source.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        facts.append(FileFact(path=file.path, size=file.source.stat().st_size, digest=digest))
    return tuple(facts)


def download(files: Sequence[InventoryFile], store: Files, prefix: str, target: Path, patience: Patience) -> None:
    """Copy the files to `target`, proving each against its size and digest. Raises CheckpointDamaged, naming them."""
    bad: list[str] = []

    def fetch(file: InventoryFile) -> None:
        place = target / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            moved = retrying(lambda: store.download(prefix + file.path, place), patience)
        except FileNotFoundError:
            bad.append(file.path)
            return
        if moved.size != file.size or (file.digest is not None and moved.digest != file.digest):
            place.unlink()
            bad.append(file.path)

    each(fetch, files, limit=FILES_AT_ONCE)
    if bad:
        raise CheckpointDamaged(f"missing, or not what the inventory says: {shown(bad)}", paths=sorted(bad))


def local_folder(store: Files, prefix: str) -> Path | None:
    """Where the folder behind a prefix lies on this machine, if it does. A port speaks of objects only."""
    inside = store.local_path(prefix + "object")
    return None if inside is None else inside.parent


def shown(paths: Sequence[str]) -> str:
    """A few paths, for a message."""
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(repr(path) for path in sorted(paths)[:5]) + more
