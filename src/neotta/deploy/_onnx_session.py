"""Open an exported ONNX file: check it, read its description, and start ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neotta._extras import need
from neotta.deploy._card import Card, matches_checksum
from neotta.errors import ModelLoadError, OptionError


def opened(path: str | os.PathLike[str], providers: Sequence[str] | None, threads: int | None) -> tuple[Any, Card]:
    """The session of a file, and its description.

    Raises:
        ModelLoadError: The file is missing, damaged, or was not written by `neotta.deploy.export`.
        OptionError: A provider is not available, or the number of threads is not positive.
    """
    content = _content(Path(path))
    whole = matches_checksum(content)
    if whole is False:
        raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its content does not match its checksum")
    session = _session(content, str(path), providers, threads)
    try:
        card = Card.read(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its metadata is not text") from error
    if card is None:
        raise ModelLoadError(
            f"{os.fspath(path)!r} was not written by this version of neotta.deploy.export: for other ONNX "
            "files, re-center the logits with neotta.deploy.LogitRecenter.from_onnx"
        )
    if whole is None:
        raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its checksum is missing")
    return session, card


def _content(path: Path) -> bytes:
    """Read the file once: what is checked is what is run."""
    need("onnxruntime", "running an ONNX file")
    if not path.is_file():
        raise ModelLoadError(f"there is no file {str(path)!r}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def _session(content: bytes, name: str, providers: Sequence[str] | None, threads: int | None) -> Any:
    onnxruntime = need("onnxruntime", "running an ONNX file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # only errors: a warning about the default of `adapt` is expected
    if threads is not None:
        if not isinstance(threads, int) or threads < 1:
            raise OptionError(f"threads is {threads!r}: expected an integer, at least 1")
        options.intra_op_num_threads = threads
    available = onnxruntime.get_available_providers()
    missing = [provider for provider in providers or () if provider not in available]
    if missing:
        raise OptionError(f"ONNX Runtime has no provider {missing[0]!r}: available are {', '.join(available)}")
    try:
        return onnxruntime.InferenceSession(content, options, providers=list(providers or ["CPUExecutionProvider"]))
    except Exception as error:  # the errors of onnxruntime share no base class
        raise ModelLoadError(f"{name!r} cannot be run by ONNX Runtime: {error}") from error
