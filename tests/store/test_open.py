"""Every spelling of a place meets at one root, or is refused with the value and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.servers import SECRET

from tallymark.errors import InvalidInput
from tallymark.store.local import LocalStore
from tallymark.store.memory import MemoryStore
from tallymark.store.open import open_store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = Path(os.path.realpath(tmp_path)) / "home"
    (home / "real").mkdir(parents=True)
    (home / "link").symlink_to(home / "real")
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    return home


def test_spellings_of_one_folder_meet(home: Path) -> None:
    spellings: list[Any] = [
        "out", "./out", "out/", "~/out", "./real/..//out/.", f"file://{home}/out", f"file://localhost{home}/out/",
        f"file:{home}/out", f"FILE://{home}/out", Path("out"), home / "out", f"{home}/real/../out", "link/../out",
    ]  # fmt: skip
    assert {open_store(spelling).url for spelling in spellings} == {str(home / "out")}
    assert {open_store(spelling).url for spelling in ("link/run", "real/run", Path("link/run"))} == {
        str(home / "real" / "run")
    }
    assert not (home / "out").exists()


def test_a_store_stays_where_it_was_opened(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("out")
    monkeypatch.chdir(home / "real")
    store.put("x", b"1")
    assert open_store(home / "out").read("x") == b"1" and open_store("out").read("x") is None


def test_odd_local_names_are_literal(home: Path) -> None:
    for name in ("lr[1e-4]*{a}", "two words", "%41", "a#b?c", "größe", "ab:c/d", "~tilde"):
        given = "./" + name if name.startswith("~") else name
        assert open_store(given).url == str(home / name)


def test_memory_is_shared_by_name() -> None:
    one, same, other = open_store("memory://a/b"), open_store("memory://a/b/"), open_store("memory://a/c")
    one.put("x", b"1")
    assert same.read("x") == b"1" and other.read("x") is None and same.url == "memory://a/b"
    assert MemoryStore("a/b").read("x") == b"1"
    assert MemoryStore().read("x") is None
    one.delete(["x"])


@pytest.mark.parametrize(
    ("spelling", "url"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/a/b//", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://my.dotted.bkt/a?b#c%41 +@é[*]", "s3://my.dotted.bkt/a?b#c%41 +@é[*]"),
    ],
)
def test_s3_urls_are_literal(spelling: str, url: str) -> None:
    store = open_store(spelling, storage_options={"key": "k", "secret": SECRET})
    assert store.url == url and repr(store) == f"FsspecStore({url!r})"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("", "''"),
        ("  ", "'  '"),
        ("C:\\out", "Windows"),
        ("c:/out", "Windows"),
        ("D:", "Windows"),
        ("\\\\host\\share", "Windows"),
        ("s3://", "no bucket"),
        ("s3:///prefix", "no bucket"),
        ("s3:/bucket/prefix", "s3://"),
        (Path("s3://bucket/prefix"), "not as a Path"),
        ("s3://bucket/a/../b", "'..'"),
        ("s3://bucket/./b", "'.'"),
        ("s3://bucket//b", "empty"),
        ("s3://buc ket/b", "'buc ket'"),
        ("s3://bucket/a\0b", "NUL"),
        ("a\0b", "NUL"),
        ("file://host/x", "host"),
        ("file://", "three slashes"),
        ("file:///a%20b", "%-code"),
        ("memory://", "memory://name"),
        ("memory://a/../b", "memory://name"),
        ("gs://bucket/x", "tallymark[s3]"),
        ("https://host/x", "https://..."),
        ("~nobody-of-this-name/out", "~nobody"),
        (None, "NoneType"),
        (7, "int"),
        (b"out", "bytes"),
    ],
)
def test_what_is_refused(place: Any, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(place)
    assert says in str(caught.value)


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(InvalidInput, match="is a file"):
        open_store(tmp_path / "file")


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIAKEY:{SECRET}@bucket/prefix",
        f"s3://AKIAKEY:sec/{SECRET}@bucket/prefix",
        f"s3://{SECRET}@bucket/prefix",
        f"file://user:{SECRET}@host/x",
        f"https://host/container?sig={SECRET}",
        f"ftp://user:{SECRET}@host/x",
    ],
)
def test_a_credential_in_a_url_is_refused_and_not_echoed(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert SECRET not in str(caught.value) and "AKIAKEY" not in str(caught.value)


def test_options_where_they_mean_nothing(tmp_path: Path) -> None:
    for place in (tmp_path, "memory://x"):
        with pytest.raises(InvalidInput, match="storage_options") as caught:
            open_store(place, storage_options={"secret": SECRET})
        assert SECRET not in str(caught.value)
        open_store(place, storage_options={})
    with pytest.raises(InvalidInput, match="not both"):
        open_store(None, store=MemoryStore(), storage_options={"key": "x"})


def test_a_ready_store_is_returned_as_it_is(tmp_path: Path) -> None:
    for store in (MemoryStore(), LocalStore(tmp_path)):
        assert open_store(None, store=store) is store and open_store("memory://other", store=store) is store


def test_filesystem_objects(tmp_path: Path) -> None:
    local = open_store(tmp_path / "run", store=fsspec.filesystem("file"))
    assert isinstance(local, LocalStore) and local.url == str(tmp_path / "run")
    assert open_store(f"file://{tmp_path}/run", store=fsspec.filesystem("file")).url == local.url
    for wrong in (fsspec.filesystem("memory"), object()):
        with pytest.raises(InvalidInput, match="is not known"):
            open_store("bucket/x", store=wrong)
    with pytest.raises(InvalidInput, match="LocalFileSystem"):
        open_store("s3://bucket/x", store=fsspec.filesystem("file"))


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def test_without_s3fs_the_message_says_what_to_install() -> None:
    code = """
import sys
sys.modules["s3fs"] = None
from tallymark.store.open import open_store
try:
    open_store("s3://bucket/x")
except ValueError as exc:
    print(exc)
"""
    assert "pip install 'tallymark[s3]'" in run_python(code)


def test_no_client_is_imported_before_it_is_asked_for() -> None:
    code = """
import sys
from tallymark.store.open import open_store
open_store("/tmp/x"); open_store("memory://x")
print(sorted({"fsspec", "s3fs", "botocore", "aiohttp", "asyncio"} & set(sys.modules)))
"""
    assert run_python(code).strip() == "[]"
