"""State files: tensors and their description in one safetensors file with a checksum. It needs no torch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neotta._files import atomic
from neotta.errors import StateFileError

if TYPE_CHECKING:  # arrays can be read and written without torch
    from torch import Tensor

FORMAT = "neotta-state-3"
Array: TypeAlias = "np.ndarray[Any, Any]"


Tensors: TypeAlias = "Mapping[str, Tensor] | Mapping[str, Array]"


def write_state(path: str | os.PathLike[str], tensors: Tensors, about: Mapping[str, Any]) -> None:
    """Write tensors or arrays and a JSON description, atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(packed(tensors, about))


def packed(tensors: Tensors, about: Mapping[str, Any]) -> bytes:
    """The content of a file of `write_state`; of arrays it is made without torch."""
    if all(isinstance(each, np.ndarray) for each in tensors.values()):
        from safetensors.numpy import save

        ready: dict[str, Any] = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    else:
        from safetensors.torch import save

        ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}  # type: ignore[union-attr]
    content: bytes = save(ready, metadata=_header(ready, about))
    return content


def read_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file written by `write_state`."""
    from safetensors.torch import load

    return _parsed(content_of(path), repr(os.fspath(path)), load)


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Same as `read_state`, without torch."""
    return unpacked(content_of(path), repr(os.fspath(path)))


def unpacked(content: bytes, source: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the description in the content of a file; `source` is what messages call it."""
    from safetensors.numpy import load

    return _parsed(content, source, load)


def content_of(path: str | os.PathLike[str]) -> bytes:
    """The content of a state file."""
    try:
        return Path(path).read_bytes()  # once: the file may be replaced at any time
    except FileNotFoundError:
        raise StateFileError(f"there is no state file {os.fspath(path)!r}") from None
    except OSError as error:
        raise StateFileError(f"cannot read the state file {os.fspath(path)!r}: {error.strerror or error}") from error


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def fingerprint(tensors: Tensors) -> str:
    """Hash of names, shapes, dtypes and values; the same for tensors and for arrays."""
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


def _header(tensors: Tensors, about: Mapping[str, Any]) -> dict[str, str]:
    header = json.loads(json.dumps({"format": FORMAT, **about}))  # as it is read back
    return {"neotta": json.dumps({**header, "sha256": _checksum(tensors, header)})}


def _parsed(
    content: bytes, source: str, load: Callable[[bytes], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError

    try:
        tensors = load(content)
        about = json.loads(_metadata(content).get("neotta", "null"))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateFileError(f"{source} is damaged or not a safetensors file: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise StateFileError(f"{source} was not written by this version of neotta (format {FORMAT})")
    if about.pop("sha256", None) != _checksum(tensors, about):
        raise StateFileError(f"{source} is damaged: its content does not match its checksum")
    return tensors, about


def _metadata(content: bytes) -> dict[str, str]:
    """The free text in the header of a safetensors file, which is JSON after eight bytes of its length."""
    length = int.from_bytes(content[:8], "little")
    metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return metadata


def _checksum(tensors: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{fingerprint(tensors)} {json.dumps(header, sort_keys=True)}".encode()).hexdigest()
