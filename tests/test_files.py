from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading

import pytest

from neotta._files import atomic
from neotta.errors import StorageError


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


def test_what_killed_processes_left_is_removed_by_the_next_save(old):
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(old)], check=False)
    others = [".file.kept.tmp", ".another.abcdefgh.tmp", ".file.abcdefgh.old", "file.tmp"]
    for name in others:
        (old.parent / name).touch()
    left = [name for name in names(old.parent) if name not in (*others, "file")]
    assert len(left) == 1
    write(old, b"new")
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
