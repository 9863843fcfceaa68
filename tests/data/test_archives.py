"""Downloading: only the wanted members, checked, written whole or not at all, and clear when offline."""

import hashlib
import io
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from python2_pickle import python2_dumps
from test_cifar import NAMES, write_cifar100

from nofe.data import archives
from nofe.data.archives import UnreachableError, download_members
from nofe.data.cifar import load_cifar
from nofe.errors import RunError, UserError


def write_tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> str:
    """Write a .tar.gz and return its MD5."""
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def regular(name: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of tmp_path/served, on this machine."""
    (tmp_path / "served").mkdir()
    handler = partial(QuietHandler, directory=str(tmp_path / "served"))
    with HTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_cifar_is_downloaded_once_and_then_read(tmp_path: Path, server: str) -> None:
    folder = write_cifar100(tmp_path / "official", python2_dumps)
    members = [regular(f"cifar-100-python/{file}", (folder / file).read_bytes()) for file in ("meta", "test", "train")]
    members.append(regular("cifar-100-python/file.txt~", b"also in the official archive"))
    md5 = write_tar(tmp_path / "served" / "cifar.tar.gz", members)
    root = tmp_path / "not" / "there" / "yet"
    dataset = load_cifar("cifar100", root, url=f"{server}/cifar.tar.gz", md5=md5)
    assert dataset.class_names == tuple(NAMES)
    assert everything_below(root) == {"cifar-100-python"} | {f"cifar-100-python/{f}" for f in ("meta", "test", "train")}
    again = load_cifar("cifar100", root, url="http://127.0.0.1:1/nothing-answers-here", md5=md5)
    assert again.fingerprint() == dataset.fingerprint() == load_cifar("cifar100", tmp_path / "official").fingerprint()


def test_files_that_are_there_are_kept(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path / "root", python2_dumps)
    meta = (folder / "meta").read_bytes()
    (folder / "meta").unlink()
    md5 = write_tar(
        tmp_path / "a.tar.gz", [regular("cifar-100-python/meta", meta), regular("cifar-100-python/train", b"other")]
    )
    load_cifar("cifar100", tmp_path / "root", url=(tmp_path / "a.tar.gz").as_uri(), md5=md5)
    assert (folder / "train").read_bytes() != b"other"


def test_offline_says_where_the_files_go(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/cifar.tar.gz"
        with pytest.raises(UserError) as caught:
            load_cifar("cifar100", tmp_path, url=url)
    message = str(caught.value)
    assert f"train, test, meta absent and {url} not reached" in message
    assert "download https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz on a machine" in message
    assert f"unpack it into {tmp_path}, so that {tmp_path / 'cifar-100-python' / 'train'} exists" in message
    assert "\n" not in message


@pytest.mark.parametrize("address", ["/gone.tar.gz", "not an address"])
def test_addresses_without_an_answer(tmp_path: Path, server: str, address: str) -> None:
    url = server + address if address.startswith("/") else address
    with pytest.raises(UnreachableError, match=r"not found|unknown url type"):
        download_members(url, "", {"a": tmp_path / "a"})


def test_another_md5_writes_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    write_tar(archive, [regular("data/a", b"content")])
    with pytest.raises(UserError, match="instead of 0123"):
        download_members(archive.as_uri(), "0123", {"data/a": tmp_path / "out" / "a"})
    assert everything_below(tmp_path / "out") == set()


def test_only_regular_members_of_the_wanted_names_are_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    out = tmp_path / "out" / "deep"
    archive = tmp_path / "a.tar.gz"
    members = [
        regular("../escaped", b"x"),
        regular(str(tmp_path / "absolute"), b"x"),
        link("data/a", str(secret), tarfile.SYMTYPE),
        link("data/a", "../escaped", tarfile.LNKTYPE),
        link("data/a", "", tarfile.DIRTYPE),
        regular("data/../data/a", b"almost the name"),
        regular("data/a", b"wanted"),
        regular("data/a", b"a second one of the same name"),
        regular("data/b", b"not wanted"),
    ]
    before = everything_below(tmp_path)
    md5 = write_tar(archive, members)
    download_members(archive.as_uri(), md5, {"data/a": out / "a"})
    assert everything_below(tmp_path) - before == {"a.tar.gz", "out", "out/deep", "out/deep/a"}
    assert (out / "a").read_bytes() == b"wanted"
    assert not (out / "a").is_symlink()
    assert secret.read_bytes() == b"secret"


def test_a_member_that_is_missing_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    md5 = write_tar(archive, [link("data/a", "/etc/passwd", tarfile.SYMTYPE)])
    with pytest.raises(UserError, match="lacks data/a"):
        download_members(archive.as_uri(), md5, {"data/a": tmp_path / "out" / "a"})


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 50])
def test_what_is_not_an_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(UserError, match="cannot be unpacked"):
        download_members(archive.as_uri(), hashlib.md5(content).hexdigest(), {"data/a": tmp_path / "out" / "a"})


def test_a_truncated_archive_leaves_no_half_file(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    write_tar(archive, [regular("data/a", os.urandom(100_000))])
    content = archive.read_bytes()[:50_000]
    archive.write_bytes(content)
    with pytest.raises(UserError, match="cannot be unpacked"):
        download_members(archive.as_uri(), hashlib.md5(content).hexdigest(), {"data/a": tmp_path / "out" / "a"})
    assert everything_below(tmp_path / "out") == set()


@pytest.mark.parametrize("limit", ["MAX_ARCHIVE_BYTES", "MAX_MEMBER_BYTES", "MAX_MEMBERS"])
def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    archive = tmp_path / "a.tar.gz"
    md5 = write_tar(archive, [regular("data/a", os.urandom(1000)), regular("data/b", os.urandom(2000))])
    members = {"data/a": tmp_path / "out" / "a", "data/b": tmp_path / "out" / "b"}
    download_members(archive.as_uri(), md5, members)
    monkeypatch.setattr(archives, limit, {"MAX_MEMBERS": 1}.get(limit, 1500))
    with pytest.raises(UserError, match="more than"):
        download_members(archive.as_uri(), md5, members)


def test_a_full_disk_fails_the_run_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "a.tar.gz"
    md5 = write_tar(archive, [regular("data/a", b"new")])
    path = tmp_path / "out" / "a"
    path.parent.mkdir()
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"out: cannot be written to \(No space left on device\)"):
        download_members(archive.as_uri(), md5, {"data/a": path})
    assert everything_below(tmp_path / "out") == {"a"}
    assert path.read_bytes() == b"old"
