"""What only a folder does: errors of the operating system, links, folders, what NFS hides."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tallymark.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuited
from tallymark.store import local, publish
from tallymark.store.local import LocalStore
from tallymark.store.mounts import file_system_type


def litter(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if publish.PRIVATE_NAME.fullmatch(path.name)]


def failing(code: int) -> Any:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "a" / "b")
    assert store.read("x") is None and list(store.list("")) == [] and list(store.delete(["x"])) == []
    assert not (tmp_path / "a").exists()
    store.put("x", b"1")
    assert (tmp_path / "a" / "b" / "x").read_bytes() == b"1"


def test_relative_root_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put("x", b"1")
    assert store.url == str(tmp_path / "out") and (tmp_path / "out" / "x").exists()


@pytest.mark.parametrize(
    ("code", "error", "retryable"),
    [
        *[(code, StoreError, True) for code in (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT)],
        *[(code, StoreError, True) for code in (errno.ENOSPC, errno.EDQUOT)],
        *[(code, StoreDenied, False) for code in (errno.EACCES, errno.EPERM, errno.EROFS)],
        (errno.ENAMETOOLONG, StoreError, False),
    ],
)
def test_an_error_names_the_key_and_says_whether_to_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StoreError], retryable: bool
) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    (tmp_path / "source").write_bytes(b"12345")
    monkeypatch.setattr(os, "fsync", failing(code))
    for call in (
        lambda: store.create("a/c", b"12345"),
        lambda: store.put("a/c", b"12345"),
        lambda: store.upload(tmp_path / "source", "a/c"),
    ):
        with pytest.raises(error, match="'a/c'") as caught:
            call()
        assert (caught.value.key, caught.value.retryable) == ("a/c", retryable)
        assert isinstance(caught.value.__cause__, OSError)
        assert ("needs 5 bytes" in str(caught.value)) is (code in (errno.ENOSPC, errno.EDQUOT))
    assert litter(tmp_path) == [] and store.read("a/c") is None
    monkeypatch.setattr(local, "_read_file", failing(code))
    with pytest.raises(error):
        store.read("a/b")


def test_a_link_whose_reply_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    real = os.link
    for code in (errno.EIO, errno.EEXIST):  # EEXIST: the NFS client repeated a request that had been done.

        def link(source: Path, target: Path, code: int = code) -> None:
            real(source, target)
            failing(code)()

        monkeypatch.setattr(os, "link", link)
        assert store.create(f"slot-{code}", b"ours") is True
    monkeypatch.setattr(os, "link", failing(errno.EIO))
    with pytest.raises(StoreError) as caught:
        store.create("slot", b"1")
    assert caught.value.retryable and store.read("slot") is None and litter(tmp_path) == []


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    with pytest.raises(StoreUnsuited, match="hard links"):
        LocalStore(tmp_path).create("slot", b"1")
    assert litter(tmp_path) == []


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    for call in (lambda: store.create("a", b"1"), lambda: store.put("a", b"1"), lambda: store.put("a/b/c", b"1")):
        with pytest.raises(StoreError) as caught:
            call()
        assert not caught.value.retryable
    assert list(store.delete(["a"])) == [] and store.read("a/b") == b"1" and litter(tmp_path) == []


def test_what_cannot_be_deleted_is_told_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    for key in ("a", "b", "c"):
        store.put(key, b"1")
    real = os.unlink
    monkeypatch.setattr(os, "unlink", lambda path: failing(errno.EIO)() if path.name == "b" else real(path))
    ((key, why),) = store.delete(["a", "b", "c"])
    assert key == "b" and os.strerror(errno.EIO) in why
    assert [key for key, _ in store.list("")] == ["b"]


def test_private_files_are_neither_shown_nor_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / publish.private_path(Path("x")).name).write_bytes(b"half")
    store.put(".tallymark-notes", b"1")  # A user's file with a name that only looks alike.
    assert [key for key, _ in store.list("")] == [".tallymark-notes"]
    with pytest.raises(InvalidInput):
        store.put("a/.tallymark-" + "0" * 32, b"1")


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    store.put("a/b/c", b"1")
    os.unlink(tmp_path / "run" / "a" / "b" / "c")
    os.rmdir(tmp_path / "run" / "a" / "b")
    os.rmdir(tmp_path / "run" / "a")
    store.put("a/b/c", b"2")
    assert store.read("a/b/c") == b"2"


def test_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = publish.sync_folder

    def sync_folder(path: Path) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(publish, "sync_folder", sync_folder)
    LocalStore(tmp_path / "x" / "run").put("a/b/c", b"1")
    run = tmp_path / "x" / "run"
    assert synced == [tmp_path, tmp_path / "x", run, run / "a", run / "a" / "b"]
    synced.clear()
    # Another process must not rely on names that the first may not have synced.
    LocalStore(tmp_path / "x" / "run").put("a/b/d", b"1")
    assert synced == [tmp_path / "x", run, run / "a", run / "a" / "b"]


def test_a_folder_that_vanishes_in_a_listing_was_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    for key in ("a/1", "b/1", "c/1"):
        store.put(key, b"1")
    real = os.scandir

    def scandir(path: Path) -> Any:
        if Path(path).name == "b":
            failing(errno.ENOENT)()
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [key for key, _ in store.list("")] == ["a/1", "c/1"]
    monkeypatch.setattr(os, "scandir", lambda path: failing(errno.EIO)() if Path(path).name == "b" else real(path))
    with pytest.raises(StoreError):
        list(store.list(""))


def test_after_skips_whole_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    for step in range(20):
        store.put(f"markers/{step:04d}/x", b"1")
    seen: list[str] = []
    real = os.scandir

    def scandir(path: Path) -> Any:
        seen.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [key for key, _ in store.list("markers/", "markers/0017/x")] == ["markers/0018/x", "markers/0019/x"]
    assert seen == ["markers", "0017", "0018", "0019"]


def test_links_do_not_lead_in_circles(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    store.put("a/b", b"1")
    (tmp_path / "run" / "a" / "up").symlink_to(tmp_path / "run")
    (tmp_path / "run" / "a" / "self").symlink_to("self")
    (tmp_path / "run" / "a" / "dangling").symlink_to("nowhere")
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "c").write_bytes(b"22")
    (tmp_path / "run" / "other-disk").symlink_to(tmp_path / "big")
    assert [tuple(item) for item in store.list("")] == [("a/b", 1), ("other-disk/c", 2)]


def test_a_miss_on_nfs_is_believed_after_the_folder_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "file_system_type", lambda path: "nfs4")
    store = LocalStore(tmp_path)
    assert store.visibility_delay_s == 60.0
    store.put("journal/0", b"1")
    stale = [True]
    real_read, real_scandir = local._read_file, os.scandir

    def read(path: Path) -> bytes:
        if stale[0]:
            raise FileNotFoundError(errno.ENOENT, "remembered", str(path))
        return real_read(path)

    def scandir(path: Path) -> Any:
        stale[0] = False
        return real_scandir(path)

    monkeypatch.setattr(local, "_read_file", read)
    monkeypatch.setattr(os, "scandir", scandir)
    assert store.read("journal/0") == b"1"
    assert store.read("journal/1") is None and store.read("no/such/folder/1") is None


def test_errors_of_the_source_pass_through(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    # Reading it fails with EIO, though opening works.
    with pytest.raises(OSError, match="Input/output error") as caught:
        store.upload(Path("/proc/self/mem"), "a/b")
    assert not isinstance(caught.value, StoreError) and list(store.list("")) == []
    assert litter(tmp_path) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "run")
    store.put("shard", b"old")
    (tmp_path / "source").write_bytes(b"x" * (3 << 20))
    real, calls = os.write, []

    def write(fd: int, body: bytes) -> int:
        calls.append(fd)
        return failing(errno.ENOSPC)() if len(calls) > 2 else real(fd, body)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreError, match="3145728 bytes") as caught:
        store.upload(tmp_path / "source", "shard")
    assert caught.value.retryable
    monkeypatch.undo()
    assert store.read("shard") == b"old" and litter(tmp_path) == []


def test_a_store_travels_to_another_process(tmp_path: Path) -> None:
    store = pickle.loads(pickle.dumps(LocalStore(tmp_path)))
    store.put("a", b"1")
    assert LocalStore(tmp_path).read("a") == b"1"


def test_mounts(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "a / ext4 rw 0 0\nb /mnt nfs4 rw 0 0\nc /mnt/my\\040disk xfs rw 0 0\nd /mnt/x ext4 rw 0 0\n"
        "e /mnt/x nfs rw 0 0\nbroken\n"
    )
    kinds = {
        "/": "ext4",
        "/mntx": "ext4",
        "/mnt": "nfs4",
        "/mnt/a/b": "nfs4",
        "/mnt/my disk/a": "xfs",
        "/mnt/x/y": "nfs",
    }
    assert {path: file_system_type(Path(path), str(mounts)) for path in kinds} == kinds
    assert file_system_type(tmp_path, str(tmp_path / "none")) == ""


def test_a_delete_removes_empty_folders_and_writers_make_them_again(tmp_path):
    """A sweep and writers share a folder: nothing is lost, and no empty folder stays behind."""
    store = LocalStore(tmp_path / "run")
    store.put("markers/1/a", b"{}")
    store.put("markers/2/b", b"{}")
    assert not store.delete(["markers/1/a"])
    assert not (tmp_path / "run" / "markers" / "1").exists()
    assert store.read("markers/2/b") == b"{}"
    stop = threading.Event()

    def sweep():
        while not stop.is_set():
            store.delete(["markers/3/other"])
            time.sleep(0.001)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(300):
            key = f"markers/3/{number}"
            store.put(key, b"{}")
            assert store.read(key) == b"{}"
            assert not store.delete([key])
    finally:
        stop.set()
        sweeper.join()
