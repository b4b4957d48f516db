"""What users hold: a `Checkpoint`, before it is reported and after it is committed, and the `Manifest` of a step.

Rules a change must keep:
- Reading a checkpoint never runs code from it: a `kind` is looked up among classes that the user has defined.
- An adopted checkpoint (data that lie elsewhere and were only reported by URL) is never written to nor deleted.
- Nothing is believed but the commit's entry and its inventory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

from tallymark import transfer
from tallymark.contents import Contents
from tallymark.errors import CheckpointDamaged, InvalidInput, UsageError
from tallymark.parallel import each
from tallymark.records import Commit, Ranges, from_plain, from_ranges, to_plain
from tallymark.register import Patience
from tallymark.store.port import RunStore

GENERIC = "files"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a committed checkpoint: path inside it, bytes, sha256 (None if adopted), ranks that wrote it."""

    path: str
    size: int
    digest: str | None
    ranks: tuple[int, ...]


class Checkpoint:
    """Data of one step: a local folder or file, data elsewhere, or a committed checkpoint.

    Make one with `from_directory` or `at` to report it; find one as `manifest.checkpoint`. All contributing ranks of a
    step must report the same place and the same kind.

    A subclass names its kind, `class TorchShards(Checkpoint, kind="torch-shards")`, and comes back as itself wherever
    it has been imported; elsewhere as the generic class, with the same `kind`.
    """

    _classes: ClassVar[dict[str, type[Checkpoint]]] = {}
    _class_kind: ClassVar[str] = GENERIC

    def __init_subclass__(cls, *, kind: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind is not None:
            cls._class_kind = _check_kind(kind)
            Checkpoint._classes[kind] = cls

    def __init__(self) -> None:
        raise UsageError("make a checkpoint with Checkpoint.from_directory(dir) or Checkpoint.at(url)")

    @classmethod
    def _make(cls, url: str, kind: str, metadata: Mapping[str, Any]) -> Self:
        made = cls.__new__(cls)
        made._url, made._kind = url, kind
        made._metadata = dict(metadata)
        made._local = None
        made._chosen = None
        made._contents = None
        return made

    _url: str
    _kind: str
    _metadata: dict[Any, Any]
    _local: Path | None
    _chosen: tuple[str, ...] | None
    _contents: Contents | None

    # ------------------------------------------------------------------------------------- before the report

    @classmethod
    def from_directory(
        cls, path: str | Path, *, kind: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Self:
        """A local folder, or a single file, to be copied into the run. It is only read, and never deleted.

        `metadata` is this rank's own, of JSON values. Raises FileNotFoundError, InvalidInput.
        """
        if "://" in str(path):
            raise InvalidInput(f"{str(path)!r} is a URL: report data in place as tallymark.Checkpoint.at(url)")
        local = Path(path).expanduser()
        if not local.exists():
            raise FileNotFoundError(f"there is no file or folder {str(path)!r} to save (looked at {local.absolute()})")
        made = cls._make(str(local), _check_kind(kind or cls._class_kind), _metadata_of(metadata))
        made._local = local
        return made

    @classmethod
    def at(
        cls,
        url: str,
        *,
        files: list[str] | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Data that are in place already, at `url`: adopted, not copied, and marked so in the manifest.

        `files` are this rank's own files, relative to `url`; without it the rank vouches for all that lie there when
        it reports. That they stay as they are is the caller's promise: tallymark neither guards nor deletes them.
        Refused at the report if `url` lies in or above the run.
        """
        made = cls._make(str(url), _check_kind(kind or cls._class_kind), _metadata_of(metadata))
        made._chosen = tuple(files) if files is not None else None
        return made

    def update_metadata(self, more: Mapping[str, Any]) -> None:
        """Merge into this rank's metadata. Only before the report. Raises TypeError for what JSON cannot hold."""
        self._own("update_metadata")
        self._metadata = {**self._metadata, **_metadata_of(more)}

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace this rank's metadata. Only before the report. Raises TypeError for what JSON cannot hold."""
        self._own("set_metadata")
        self._metadata = _metadata_of(metadata)

    def _offered(self) -> tuple[Path | None, str, tuple[str, ...] | None]:
        """For the worker: the local source, or else the URL and the files chosen there."""
        if self._contents is not None:
            raise InvalidInput(f"{self!r} is committed already; report a new one, or Checkpoint.at its url")
        return self._local, self._url, self._chosen

    def _own(self, call: str) -> None:
        if self._contents is not None:
            raise UsageError(f"{call}: a committed checkpoint does not change")

    # ------------------------------------------------------------------------------------- after the commit

    @classmethod
    def _committed(cls, contents: Contents) -> Checkpoint:
        saved = contents.saved
        found = Checkpoint._classes.get(saved.kind, Checkpoint)
        made = found._make(contents.url, saved.kind, {})
        made._contents = contents
        return made

    @property
    def url(self) -> str:
        """Where the data lie."""
        return self._url

    @property
    def kind(self) -> str:
        """The kind that the contributing ranks gave it."""
        return self._kind

    @property
    def adopted(self) -> bool:
        """Whether the data lie outside the run, where tallymark cannot guard them."""
        return self._contents.saved.adopted if self._contents else self._local is None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The contributing ranks, ascending. Empty before the commit."""
        return from_ranges(self._contents.saved.ranks) if self._contents else ()

    @property
    def metadata(self) -> dict[Any, Any]:
        """Before the report: this rank's metadata. Of a committed checkpoint: contributing rank -> its metadata."""
        if self._contents is None:
            return _metadata_of(self._metadata)
        return {word.rank: from_plain(word.metadata) for word in self._contents.inventory.ranks}

    def files(self, rank: int | None = None) -> list[FileInfo]:
        """The files in order of their paths; with `rank`, those that this rank wrote."""
        everything = [
            FileInfo(file.path, file.size, file.digest, from_ranges(file.ranks))
            for file in self._of("files").inventory.files
        ]
        return everything if rank is None else [file for file in everything if rank in file.ranks]

    def open(self, name: str) -> BinaryIO:
        """A seekable, read-only binary stream of one file. Raises FileNotFoundError, naming the files there are."""
        contents = self._of("open")
        if name not in {file.path for file in contents.inventory.files}:
            known = transfer.shown([file.path for file in contents.inventory.files])
            raise FileNotFoundError(f"the checkpoint has no file {name!r}; it has {known}")
        return contents.store.open(contents.prefix + name)

    def download(self, target: str | Path, *, rank: int | None = None) -> Path:
        """Copy all files, or those of one rank, to a folder, complete and verified, or not at all.

        `target` must be absent or an empty folder. Files are fetched into a folder beside it, which then takes its
        name. Raises CheckpointDamaged, FileExistsError, StoreError.
        """
        contents = self._of("download")
        goal = Path(os.path.realpath(Path(target).expanduser()))
        if os.path.ismount(goal):
            raise FileExistsError(
                f"{str(target)!r} is a mount point, which cannot be filled at one stroke: name a folder in it"
            )
        if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
            raise FileExistsError(f"{str(target)!r} exists and is not an empty folder: download to a new one")
        goal.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tallymark-", dir=goal.parent) as beside:
            staged = Path(beside) / "data"
            staged.mkdir()
            wanted = [file for file in contents.inventory.files if rank is None or rank in from_ranges(file.ranks)]
            transfer.download(wanted, contents.store, contents.prefix, staged, contents.patience)
            try:
                os.rename(staged, goal)  # also onto an empty folder, and never into it
            except OSError as problem:
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise FileExistsError(
                    f"{str(target)!r} was filled by somebody else meanwhile: give each rank a folder of its own"
                ) from problem
        return goal

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[Path]:
        """The data as a local folder: in place if they lie on this machine, else a temporary copy, removed after.

        Treat it as read-only: in place, these are the run's own files.
        """
        contents = self._of("as_directory")
        here = transfer.local_folder(contents.store, contents.prefix)
        if here is not None:
            yield here
            return
        with tempfile.TemporaryDirectory(prefix="tallymark-") as folder:
            yield self.download(Path(folder) / "checkpoint")

    def verify(self, level: str = "digest") -> int:
        """Prove every file against the inventory; the number of files. Raises CheckpointDamaged, naming the bad ones.

        `level="size"` looks at each file; `"digest"` reads it all. An adopted file has no digest: its size is checked.
        """
        if level not in ("size", "digest"):
            raise InvalidInput(f"level={level!r}: say 'size' or 'digest'")
        contents = self._of("verify")
        files = contents.inventory.files
        bad = each(lambda file: contents.problem(file, level), files, limit=8)
        wrong = {file.path: problem for file, problem in zip(files, bad, strict=True) if problem}
        if wrong:
            lines = "; ".join(f"{path!r} {problem}" for path, problem in list(wrong.items())[:5])
            more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise CheckpointDamaged(f"{self.url}: {lines}{more}", paths=list(wrong))
        return len(files)

    def _of(self, call: str) -> Contents:
        if self._contents is None:
            raise UsageError(f"{call}: only a committed checkpoint has files to read; see Manifest.checkpoint")
        return self._contents

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind!r} at {self.url}>"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A committed step. `metrics` are rank 0's; `checkpoint` is None if nobody saved at this step.

    `slot` is its place in the journal, `world_size` that of its attempt.
    """

    step: int
    attempt: int
    slot: int
    world_size: int
    metrics: dict[str, Any]
    checkpoint: Checkpoint | None
    ranges: Ranges = field(repr=False)

    @property
    def reporting_ranks(self) -> tuple[int, ...]:
        """The ranks whose word the commit rests on: all of the attempt, ascending."""
        return from_ranges(self.ranges)

    @classmethod
    def of(
        cls, commit: Commit, run: RunStore, data: Callable[[str], RunStore], patience: Patience | None = None
    ) -> Manifest:
        """The manifest that a journal entry is."""
        return cls(
            step=commit.step,
            attempt=commit.attempt,
            slot=commit.slot,
            world_size=commit.reporting_ranks[-1][1] + 1,
            metrics=from_plain(commit.metrics),
            checkpoint=Checkpoint._committed(Contents(commit, run, data, patience)) if commit.checkpoint else None,
            ranges=commit.reporting_ranks,
        )


def _check_kind(kind: object) -> str:
    if not isinstance(kind, str) or not kind or len(kind) > 100 or not kind.isprintable():
        raise InvalidInput(f"kind={kind!r}: a kind is a short printable name, such as 'torch-shards'")
    return kind


def _metadata_of(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of metadata, refused with a TypeError (as its users expect) where JSON cannot hold it."""
    try:
        copy: dict[str, Any] = from_plain(to_plain({} if metadata is None else metadata, "metadata"))
    except InvalidInput as problem:
        raise TypeError(str(problem)) from problem
    return copy
