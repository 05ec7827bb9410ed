"""Weights from files and from the Hugging Face hub: safetensors only, and strictly those that the model has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from neotta.errors import ModelLoadError
from neotta.models.preprocess import Preprocess

_SHOWN = 3  # keys of each kind that an error lists
_TIMEOUT = 5.0  # seconds to wait for the hub's first answer, unless HF_HUB_ETAG__TIMEOUT says otherwise


class Request(NamedTuple):
    """What `load_model` asks of each way of loading."""

    checkpoint: Path | None = None  # weights, instead of the published ones
    num_classes: int | None = None  # if it is not the architecture's own
    preprocess: Preprocess | None = None  # instead of the one on record
    pretrained: bool = True  # False leaves the model at random weights
    kwargs: Mapping[str, Any] = {}  # what else the architecture is made with


class Parts(NamedTuple):
    """What each way of loading gives to `load_model`; the preprocessing is None where it is not on record."""

    model: nn.Module
    preprocess: Preprocess | None
    labels: tuple[str, ...] | None
    norm_eps: float | None = None


def existing_safetensors(path: Path) -> Path:
    """Check that `path` is a file of the one kind that is read."""
    if path.suffix != ".safetensors":
        raise ModelLoadError(
            f"{path.name} is not a .safetensors file, and neotta reads no other: unpickling can run code. "
            "Convert it where you trust it: safetensors.torch.save_file("
            f"torch.load({path.name!r}, weights_only=True), {path.stem + '.safetensors'!r})"
        )
    if not path.is_file():
        raise ModelLoadError(f"there is no file {path}")
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    existing_safetensors(path)
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def read_header(path: Path) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Read a safetensors file's metadata and the shape of each tensor, without the tensors."""
    from safetensors import SafetensorError, safe_open

    existing_safetensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            return dict(file.metadata() or {}), shapes
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def load_strictly(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy `tensors` into `model`; any that is missing, unknown or of another shape is an error."""
    wanted = model.state_dict()
    check_fit(
        f"{source} does not fit {type(model).__name__}",
        missing=[key for key in wanted if key not in tensors],
        unknown=[key for key in tensors if key not in wanted],
        reshaped=[
            (key, tensors[key].shape, value.shape)
            for key, value in wanted.items()
            if key in tensors and tensors[key].shape != value.shape
        ],
    )
    model.load_state_dict(tensors)


def check_fit(
    complaint: str,
    missing: Iterable[str],
    unknown: Iterable[str],
    reshaped: Iterable[tuple[str, Sequence[int], Sequence[int]]],
) -> None:
    """Raise an error that lists the first keys which do not fit, if there are any."""
    shapes = [f"{key} {tuple(got)} instead of {tuple(wanted)}" for key, got, wanted in reshaped]
    wrong = _listed("missing", missing) + _listed("not in the model", unknown) + _listed("of another shape", shapes)
    if wrong:
        raise ModelLoadError(f"{complaint}: {'; '.join(wrong)}. Is the architecture the right one, and num_classes?")


def labels_beside(checkpoint: Path) -> tuple[str, ...] | None:
    """Read the list of class names in `<stem>.classes.json` beside a checkpoint, if there is one."""
    path = checkpoint.with_suffix(".classes.json")
    if not path.is_file():
        return None
    try:
        labels = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ModelLoadError(f"{path} must hold a list of class names")
    return tuple(labels)


def _unreadable(path: Path, error: Exception) -> ModelLoadError:
    return ModelLoadError(f"cannot read {path}: {error}; the file is damaged or not safetensors: download it again")


def _listed(kind: str, keys: Iterable[str]) -> list[str]:
    names = list(keys)
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{len(names)} {kind} ({', '.join(names[:_SHOWN])}{more})"]


class Repository:
    """A repository on the hub, at one state of it; where the hub does not answer, what is in the cache of it."""

    def __init__(self, name: str, *, offer: str, revision: str | None = None) -> None:
        self.name = name  # "owner/name"
        self._offer = offer  # what the caller can do without it, for errors
        self._revision = revision  # branch, tag or commit
        self._requested = False
        self._trouble: Exception | None = None

    @property
    def reached(self) -> bool:
        """Whether the hub answered."""
        return self._requested and self._trouble is None

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file at the repository's root, or None if it does not exist."""
        from huggingface_hub import errors, hf_hub_download

        try:
            if not self._requested:
                self._ask(filename)
            offline = self._trouble is not None
            path = hf_hub_download(self.name, filename, revision=self._revision, local_files_only=offline)
        except errors.LocalEntryNotFoundError as error:  # the hub fell silent after its first answer, or before
            self._trouble = self._trouble or error
            return None
        except errors.EntryNotFoundError:
            return None
        except errors.RevisionNotFoundError as error:
            raise ModelLoadError(f"the repository {self.name!r} has no revision {self._revision!r}") from error
        except errors.HFValidationError as error:
            raise ModelLoadError(
                f"{self.name!r} is neither a folder nor the name of a repository on the hub"
            ) from error
        except Exception as error:
            self._trouble = error
            raise self.missing(filename) from error
        self._revision = Path(path).parent.name  # the commit: all files shall be of the same state
        return Path(path)

    def missing(self, filename: str) -> ModelLoadError:
        """The error that says why a file was not found, and what to do."""
        from huggingface_hub import constants, errors

        error = self._trouble
        if error is None:
            return ModelLoadError(f"the repository {self.name!r} has no {filename}: {self._offer}")
        if isinstance(error, errors.RepositoryNotFoundError):  # the hub says so of private ones, too
            explained = ModelLoadError(
                f"the hub has no repository {self.name!r} that you may read: check its name, "
                "or log in with `hf auth login`"
            )
        else:
            why = f"the hub cannot be reached ({type(error).__name__}: {error})".splitlines()[0]
            if constants.HF_HUB_OFFLINE:
                why = "HF_HUB_OFFLINE is set"
            explained = ModelLoadError(
                f"{filename} of {self.name!r} is not in the cache ({constants.HF_HUB_CACHE}), and {why}. "
                f"Fetch it with `hf download {self.name} {filename}` where there is a network, "
                f"or {self._offer}"
            )
        explained.__cause__ = error
        return explained

    def _ask(self, filename: str) -> None:
        """Find out whether the hub answers; the download itself would try for half a minute."""
        from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

        timeout = constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else _TIMEOUT
        url = hf_hub_url(self.name, filename, revision=self._revision)
        self._requested = True
        try:
            get_hf_file_metadata(url, timeout=timeout)
        except (errors.EntryNotFoundError, errors.RevisionNotFoundError):
            raise  # an answer, too
        except Exception as error:  # which ones depends on the HTTP library under huggingface_hub
            self._trouble = error
