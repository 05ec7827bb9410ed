from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from neotta._files import atomic
from neotta.errors import StorageError

OPEN_FILES = Path("/proc/self/fd")


def write(path, content):
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def failing_fsync(monkeypatch, code, which):
    """Let fsync fail for files or for folders, as a broken disk does."""
    real = os.fsync

    def fsync(handle):
        if which(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_file_that_cannot_be_flushed_is_not_saved(old, monkeypatch, code):
    failing_fsync(monkeypatch, code, stat.S_ISREG)
    with pytest.raises(StorageError, match=f"cannot write '{old}': {os.strerror(code)}"):
        write(old, b"new")
    assert old.read_bytes() == b"old"
    assert names(old.parent) == ["file"]


def test_a_folder_that_cannot_be_flushed_is_an_error(old, monkeypatch):
    failing_fsync(monkeypatch, errno.EIO, stat.S_ISDIR)
    with pytest.raises(StorageError, match="Input/output error"):
        write(old, b"new")


def test_a_file_system_without_fsync_of_folders_is_none(old, monkeypatch):
    failing_fsync(monkeypatch, errno.EINVAL, stat.S_ISDIR)
    write(old, b"new")
    assert old.read_bytes() == b"new"


def test_a_write_that_fails_on_the_way_leaves_the_old_file(old):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StorageError, match="File too large"):
            write(old, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert old.read_bytes() == b"old"
    assert names(old.parent) == ["file"]


def test_a_folder_that_is_none_is_the_packages_own_error(old):
    with pytest.raises(StorageError, match="cannot write"):
        write(old / "below", b"new")
    with pytest.raises(StorageError, match="cannot write"):
        write(old.parent, b"new")


def test_links_that_lead_in_a_circle_are_refused_and_stay(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(StorageError, match="this is a link that leads to itself, not a file"):
        write(one, b"x")
    assert one.is_symlink()
    assert names(tmp_path) == ["one", "other"]


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "target", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"one", b"two"):
        write(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == link.read_bytes() == content
    assert names(tmp_path / "disk") == ["target"]


KILLED = """
import os, signal, sys
from neotta._files import atomic
with atomic(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_killed_processes_left_is_removed_after_a_day(old):
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(old)], check=False)
    others = [".file.kept.tmp", ".another.abcdefgh.tmp", ".file.abcdefgh.old", "file.tmp"]
    for name in others:
        (old.parent / name).touch()
    left = [name for name in names(old.parent) if name not in (*others, "file")]
    assert len(left) == 2
    write(old, b"new")
    assert names(old.parent) == sorted([*others, *left, "file"]), "they may belong to a process that is still writing"
    for name in left:
        os.utime(old.parent / name, (0, 0))
    write(old, b"newer")
    assert names(old.parent) == sorted([*others, "file"])


def test_a_save_leaves_alone_what_another_is_writing(old):
    with atomic(old) as temporary:
        temporary.write_bytes(b"slow")
        thread = threading.Thread(target=write, args=(old, b"quick"))
        thread.start()
        thread.join()
        assert old.read_bytes() == b"quick"
        assert temporary.read_bytes() == b"slow"
    assert old.read_bytes() == b"slow"


def test_the_packages_own_errors_and_others_stay_what_they_are(old):
    for error in (StorageError("mine"), ValueError("yours")):
        with pytest.raises(type(error), match=str(error)), atomic(old):
            raise error
    assert old.read_bytes() == b"old"
    assert names(old.parent) == ["file"]


def test_folders_that_are_missing_are_made(tmp_path):
    write(tmp_path / "a" / "b" / "file", b"new")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"new"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        write(tmp_path / "file", b"new")
        (tmp_path / "other").write_bytes(b"new")
        found = os.umask(mask)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert found == mask, "saving changes nothing for the files that the process makes later"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o777])
def test_a_replaced_file_keeps_its_permissions(old, mode):
    old.chmod(mode)
    write(old, b"new")
    assert stat.S_IMODE(old.stat().st_mode) == mode


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="this system does not list open files")
def test_saving_leaves_no_file_open(old):
    before = len(names(OPEN_FILES))
    for _ in range(3):
        (old.parent / ".file.abcdefgh.tmp").touch()  # left by a killed process
        write(old, b"new")
        with pytest.raises(ValueError, match="stop"), atomic(old):
            raise ValueError("stop")
    assert len(names(OPEN_FILES)) == before


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    """As root, saving to /dev/null would take it away from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(StorageError, match=f"cannot write '{path}': this is a device, not a file"):
            write(path, b"new")
    with pytest.raises(StorageError, match="this is a folder, not a file"):
        write(tmp_path, b"new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == ["link", "pipe"]
