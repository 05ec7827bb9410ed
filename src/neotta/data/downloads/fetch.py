"""One file over HTTP, however often the connection breaks.

The file grows as `<name>.part`; a note beside it says which version of which file it is a part of. Going on
asks the server for the missing bytes of that version (`Range` with `If-Range`); if the server has another
version, or cannot send ranges, the download starts over.

A connection that is silent for `TIMEOUT` seconds, or has not answered by then, counts as broken. After `TRIES` attempts
in a row that brought next to nothing the download is given up; what has arrived stays for the next time.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neotta._version import __version__
from neotta.data.downloads.in_time import opener
from neotta.errors import DataError

TIMEOUT = 30.0
TRIES = 8
PAUSE = 1.0
"""Seconds before the second attempt; each further one waits twice as long, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = 60.0
SPEED_WINDOW = 60.0  # seconds
SLOWEST = 1024  # bytes per second, on average over such a window

SPARE = 512 * 2**20
"""Bytes of the disk that no download and no archive may take, so that everything else can go on."""

_BLOCK = 1 << 20
_AGAIN = {408, 425, 429, 500, 502, 503, 504}  # statuses that may be better next time

Progress = Callable[[str, int, int | None], None]
"""Called with the current step, the bytes done, and the total if it is known."""


class _Broken(Exception):
    """The connection failed in a way that another attempt may mend."""


@dataclass(frozen=True)
class _Note:
    """What a part is a part of."""

    url: str
    validator: str | None  # a strong ETag or a date, for If-Range
    total: int | None


def fetch(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    room: Callable[[int, int], None] | None = None,
    progress: Progress | None = None,
    pause: float = PAUSE,
    timeout: float = TIMEOUT,
) -> None:
    """Download `url` to `target`, which appears only when it is whole and its checksum is right.

    Args:
        url: An http or https address.
        target: The file to write; its folder exists.
        checksum: `"md5:..."` or `"sha256:..."`.
        room: Called with the bytes still to come and the whole length, before they come; may raise.
        progress: Called as bytes arrive.
        pause: Seconds before the second attempt.
        timeout: Seconds of silence after which a connection counts as broken.

    Raises:
        DataError: The server refuses, sends something else, or breaks off again and again.
    """
    part = target.with_name(f"{target.name}.part")
    failures = 0
    while True:
        before = _length(part)
        try:
            _receive(url, part, proven=checksum is not None, room=room, progress=progress, timeout=timeout)
            break
        except _Broken as error:
            failures = 1 if _length(part) >= before + SLOWEST else failures + 1
            if failures >= TRIES:
                raise DataError(
                    f"{url} broke off {failures} times with next to nothing between: {error}; "
                    f"{_length(part):,} bytes are kept, start again to go on"
                ) from error
            time.sleep(min(pause * 2 ** (failures - 1), LONGEST_PAUSE))
    if checksum is not None:
        try:
            verify_file(part, checksum, progress=progress)
        except DataError as error:
            bad = target.with_name(f"{target.name.lstrip('.')}.bad")
            part.replace(bad)
            _note_path(part).unlink(missing_ok=True)
            raise DataError(f"{url}: {error}; the file is kept as {str(bad)!r} and will not be used") from error
    part.replace(target)
    _note_path(part).unlink(missing_ok=True)


def verify_file(path: Path, checksum: str, *, progress: Progress | None = None) -> None:
    """Compare a file with its checksum, `"md5:..."` or `"sha256:..."`.

    Raises:
        DataError: They differ.
    """
    kind, _, expected = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    done, total = 0, _length(path)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress("checking", done, total)
    if digest.hexdigest() != expected.lower():
        raise DataError(f"wrong {kind} checksum: expected {expected}, got {digest.hexdigest()}")


def _receive(
    url: str,
    part: Path,
    *,
    proven: bool,
    room: Callable[[int, int], None] | None,
    progress: Progress | None,
    timeout: float,
) -> None:
    """One attempt: from where `part` ends to the end of the file."""
    have, headers, note = _resume(url, part, proven)
    if note is not None and have and note.total == have:  # whole already: only the last steps were interrupted
        return
    with contextlib.closing(_open(url, headers, timeout)) as response:
        if response.status == 416:
            part.unlink(missing_ok=True)
            raise _Broken("the server's file is shorter than the part we have: beginning again")
        if response.status == 206 and not _continues(response, have, note):
            part.unlink(missing_ok=True)
            raise _Broken("the server sent another range than was asked for: beginning again")
        if response.status == 200:
            have = 0
        if response.headers.get_content_type() == "text/html":
            raise DataError(
                f"{url} is a web page, not a file (a limit on downloads, or a login?): "
                f"get the file with a browser, and put it into {str(part.parent)!r}"
            )
        total = None if response.length is None else have + response.length
        if room is not None and total is not None:
            room(total - have, total)
        _write_note(part, _Note(url, _validator(response), total))
        _copy(response, part, have, total, progress)


def _copy(response: Any, part: Path, have: int, total: int | None, progress: Progress | None) -> None:
    done, pace = have, _Pace()
    with part.open("ab" if have else "wb") as file:
        while True:
            try:
                block = response.read1(_BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise _Broken(str(error) or type(error).__name__) from error
            if not block:
                break
            if total is None and shutil.disk_usage(part.parent).free < SPARE:
                raise DataError(f"the server does not say how long its file is, and the disk is full at {done:,} bytes")
            try:
                file.write(block)
            except OSError as error:
                raise DataError(f"{str(part)!r} cannot be written: {error.strerror}") from error
            done += len(block)
            pace.check(len(block))
            if progress is not None:
                progress("downloading", done, total)
    if total is not None and done != total:
        raise _Broken(f"the connection ended after {done:,} of {total:,} bytes")


class _Pace:
    """Gives up a connection that drips: each byte in time, but the file never done."""

    def __init__(self) -> None:
        self._since, self._bytes = time.monotonic(), 0

    def check(self, received: int) -> None:
        """Count bytes, and compare with the least speed at the end of each window."""
        self._bytes += received
        passed = time.monotonic() - self._since
        if passed >= SPEED_WINDOW:
            if self._bytes < SLOWEST * passed:
                raise DataError(
                    f"the server sent {self._bytes:,} bytes in {passed:.0f} seconds: that is too slow; what came is "
                    "kept, start again to go on, or try another mirror"
                )
            self._since, self._bytes = time.monotonic(), 0


def _resume(url: str, part: Path, proven: bool) -> tuple[int, dict[str, str], _Note | None]:
    """Number of bytes already here, and the headers that ask for the rest.

    Without a validator of this server nothing but the checksum can prove that the pieces fit together.
    """
    note = _read_note(part)
    have = _length(part)
    validator = note.validator if note is not None and note.url == url else None
    if not have or note is None or not (validator or proven):
        return 0, {}, note
    headers = {"Range": f"bytes={have}-"}
    if validator:
        headers["If-Range"] = validator
    return have, headers, note


def _continues(response: Any, have: int, note: _Note | None) -> bool:
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != have:
        return False
    return note is None or note.total is None or match[3] in ("*", str(note.total))


def _open(url: str, headers: dict[str, str], timeout: float) -> Any:
    headers = {"User-Agent": f"neotta/{__version__}", "Accept-Encoding": "identity", **headers}
    try:
        return opener().open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error
        error.close()
        if error.code in _AGAIN:
            raise _Broken(f"the server answered {error.code} {error.reason}") from error
        raise DataError(f"{url} cannot be downloaded: the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise DataError(f"{url} cannot be downloaded: the server's certificate is wrong: {reason}") from error
        raise _Broken(str(reason) or type(reason).__name__) from error


def _validator(response: Any) -> str | None:
    tag: str | None = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    date: str | None = response.headers.get("Last-Modified")
    return date


def _note_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _write_note(part: Path, note: _Note) -> None:
    _note_path(part).write_text(json.dumps(asdict(note)), encoding="utf-8")


def _read_note(part: Path) -> _Note | None:
    try:
        return _Note(**json.loads(_note_path(part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
