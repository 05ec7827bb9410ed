"""State files: a few tensors and what they belong to, in one safetensors file that is checked when it is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from neotta._files import atomic
from neotta.errors import StateFileError

if TYPE_CHECKING:  # the arrays below are read and written where torch is not installed
    from torch import Tensor

FORMAT = "neotta-state-2"
Array: TypeAlias = "np.ndarray[Any, Any]"


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
    with atomic(path) as temporary:
        save_file(tensors, temporary, metadata=_header(tensors, about))


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array], about: Mapping[str, Any]) -> None:
    """As `write_state`, without torch: the file is the same."""
    from safetensors.numpy import save_file

    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with atomic(path) as temporary:
        save_file(dict(arrays), temporary, metadata=_header(arrays, about))


def read_state(path: str | os.PathLike[str]) -> State:
    """Read what `write_state` or `write_arrays` wrote.

    Raises:
        StateFileError: The file is missing, damaged, or no state file.
    """
    return State(*_read(path, "pt"))


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
    """As `read_state`, without torch."""
    return _read(path, "np")


def fingerprint(tensors: Mapping[str, Tensor] | Mapping[str, Array]) -> str:
    """A hash of names, shapes, dtypes and values; tensors and arrays of the same values have the same."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        dtype, shape, content = _plain(tensors[name])
        digest.update(f"{name} {dtype} {shape} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _plain(tensor: Tensor | Array) -> tuple[str, tuple[int, ...], bytes]:
    if isinstance(tensor, np.ndarray):
        return f"torch.{tensor.dtype}", tensor.shape, tensor.tobytes()
    import torch

    tensor = tensor.detach().cpu().contiguous()
    return str(tensor.dtype), tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _header(tensors: Mapping[str, Tensor] | Mapping[str, Array], about: Mapping[str, Any]) -> dict[str, str]:
    header = json.loads(json.dumps({"format": FORMAT, **about}))  # as it will be read
    return {"neotta": json.dumps({**header, "sha256": _checksum(tensors, header)})}


def _read(path: str | os.PathLike[str], framework: str) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise StateFileError(f"there is no state file {os.fspath(path)!r}")
    try:
        with safe_open(os.fspath(path), framework=framework) as file:
            about = json.loads((file.metadata() or {}).get("neotta", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise StateFileError(f"{os.fspath(path)!r} is damaged or no safetensors file: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise StateFileError(f"{os.fspath(path)!r} was not written by neotta.save (format {FORMAT})")
    if about.pop("sha256", None) != _checksum(tensors, about):
        raise StateFileError(f"{os.fspath(path)!r} is damaged: its content does not match its checksum")
    return State(tensors, about)


def _checksum(tensors: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """A hash of the tensors and of everything that is said about them."""
    return hashlib.sha256(f"{fingerprint(tensors)} {json.dumps(header, sort_keys=True)}".encode()).hexdigest()
