"""State files: a few tensors and what they belong to, in one safetensors file that is checked when it is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neotta._files import atomic
from neotta.errors import StateFileError

FORMAT = "neotta-state-1"


class State(NamedTuple):
    """Tensors by name, and what they belong to."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it; the file appears at once and whole."""
        write_state(path, self.tensors, self.about)


def write_state(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a JSON description; the file appears at once and whole."""
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {**about, "format": FORMAT, "sha256": fingerprint(tensors)}
    with atomic(path) as temporary:
        save_file(tensors, temporary, metadata={"neotta": json.dumps(header)})


def read_state(path: str | os.PathLike[str]) -> State:
    """Read what `write_state` wrote.

    Raises:
        StateFileError: The file is missing, damaged, or no state file.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise StateFileError(f"there is no state file {os.fspath(path)!r}")
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("neotta", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise StateFileError(f"{os.fspath(path)!r} is damaged or no safetensors file: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise StateFileError(f"{os.fspath(path)!r} was not written by neotta.save (format {FORMAT})")
    if about.get("sha256") != fingerprint(tensors):
        raise StateFileError(f"{os.fspath(path)!r} is damaged: its content does not match its checksum")
    return State(tensors, about)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes, dtypes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
