"""Load a classifier by name, with the preprocessing that belongs to its weights."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from neotta._registry import beside, blamed_on, load_object
from neotta.errors import CodeError, ModelLoadError, OptionError, UnknownModelError, UnknownNameError
from neotta.models._hf import load_hf, parts_of_hf
from neotta.models._timm import load_timm, parts_of_timm, timm_package
from neotta.models._weights import Parts, Request, existing_safetensors
from neotta.models.packaged import BUNDLED, load_packaged
from neotta.models.preprocess import Preprocess

PYTHON = "py:<module or file.py>:<function>"
FORMS = {
    **dict.fromkeys(BUNDLED, "bundled with neotta"),
    "timm:<name>": "a model of timm, with its published weights or checkpoint='<file>.safetensors'",
    "hf:<repository or folder>": "an image classifier of Hugging Face transformers",
    PYTHON: "your own: a function that returns an nn.Module or a neotta.LoadedModel",
    "<path>.safetensors": "a file that describes its model in its 'neotta' metadata",
}

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin", ".tar")
"""Suffixes of files that torch pickled."""


class LoadedModel(NamedTuple):
    """A classifier and what has to be known to use it.

    Attributes:
        model: In evaluation mode.
        preprocess: Makes its input from images.
        labels: Name of each class, if they are known.
        name: What it was loaded by.
    """

    model: nn.Module
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    name: str = ""


def load_model(
    name: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    num_classes: int | None = None,
    labels: Sequence[str] | None = None,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    norm_eps: float | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    pretrained: bool = True,
    **kwargs: Any,
) -> LoadedModel:
    """Load an image classifier.

    Args:
        name: "digits" (bundled), "timm:<name>", "hf:<repository or folder>", the path of a packaged file, or
            "py:<module or path/to/file.py>:<function>" for a model of your own: the function is called with
            `checkpoint` and `num_classes` if they are given and with `**kwargs`, and returns an nn.Module or a
            `LoadedModel`.
        checkpoint: A .safetensors file with the weights, instead of the published ones; it has to fit.
            A list of class names in `<stem>.classes.json` beside it becomes the labels. A function of your own
            may take any file or folder.
        num_classes: Number of classes, if it is not the architecture's own.
        labels: Names of the classes, instead of those that are found.
        preprocess: The preprocessing, instead of the one on record; a mapping such as `{"resize": 256}` changes
            only what it names.
        norm_eps: The eps of every LayerNorm, for weights trained with another than the architecture's.
        device: Where to put the model.
        dtype: Floating dtype of the model; float32 if not given, whatever the file holds.
        pretrained: False for random weights: nothing is downloaded, except a Hugging Face repository's
            configuration.
        **kwargs: For timm's `create_model`, transformers' `from_pretrained`, or your own function.
    """
    if not isinstance(name, str | os.PathLike):
        raise OptionError(f"expected the name of a model, for example 'digits', got {type(name).__name__}")
    name = os.fspath(name)
    if num_classes is not None and (not isinstance(num_classes, int) or num_classes < 1):
        raise OptionError(f"num_classes takes a whole number, at least 1, got {num_classes!r}")
    library, _, rest = name.partition(":")
    if name in ("", "timm:", "hf:"):
        raise UnknownModelError(name, FORMS)
    path = None if checkpoint is None else Path(checkpoint).expanduser()
    if library == "py":
        parts = _own(name, rest, path, num_classes, pretrained, kwargs)
        if parts.preprocess is None and not isinstance(preprocess, Preprocess):
            known = known_parts(parts.model)
            parts = parts._replace(preprocess=known.preprocess, labels=parts.labels or known.labels)
    else:
        weights = None if path is None else existing_safetensors(path)
        complete = preprocess if isinstance(preprocess, Preprocess) else None
        request = Request(weights, num_classes, complete, pretrained, kwargs)
        if library in ("timm", "hf"):
            parts = (load_timm if library == "timm" else load_hf)(rest, request)
        else:
            package = _packaged_path(name)
            if weights is not None:
                raise OptionError(f"checkpoint= has no place with {name!r}, which brings its own weights")
            parts = load_packaged(package, request)
    ready = _preprocess(name, parts.preprocess, preprocess)
    return _finished(parts, ready, name, labels, norm_eps, device, dtype)


def known_parts(model: nn.Module) -> Parts:
    """A model of the caller with what is on record for it: in a model of timm, or beside one of Hugging Face."""
    if isinstance(getattr(model, "pretrained_cfg", None), Mapping):
        return parts_of_timm(model)
    if getattr(getattr(model, "config", None), "name_or_path", ""):
        return parts_of_hf(model)
    return Parts(model, None, None)


def for_images(model: nn.Module) -> LoadedModel:
    """A model of the caller with the preprocessing that is on record for it.

    Raises:
        OptionError: There is none.
    """
    _, preprocess, labels, _ = known_parts(model)
    if preprocess is None:
        raise OptionError("the data are images: pass preprocess=neotta.Preprocess(...) for the model")
    return LoadedModel(model, preprocess, labels)


def _own(
    name: str, target: str, checkpoint: Path | None, num_classes: int | None, pretrained: bool, kwargs: dict[str, Any]
) -> Parts:
    options = {"checkpoint": checkpoint, "num_classes": num_classes, "pretrained": None if pretrained else False}
    made = _call_python(target, {**{key: value for key, value in options.items() if value is not None}, **kwargs})
    if isinstance(made, nn.Module):
        return Parts(made, None, None)
    if not isinstance(made, LoadedModel):
        raise ModelLoadError(
            f"{name} returned a {type(made).__name__}: it has to return an nn.Module or a neotta.LoadedModel"
        )
    model, preprocess, labels, _ = made
    if not isinstance(model, nn.Module) or not isinstance(preprocess, Preprocess | None):
        kinds = f"{type(model).__name__}, {type(preprocess).__name__}"
        raise ModelLoadError(f"{name} returned a LoadedModel of {kinds}: it takes an nn.Module and a neotta.Preprocess")
    return Parts(model, preprocess, None if labels is None else tuple(str(label) for label in labels))


def _call_python(target: str, options: Mapping[str, Any]) -> Any:
    try:
        function = load_object(f"py:{target}")
        if not callable(function) or isinstance(function, nn.Module):
            kind = type(function).__name__
            raise ModelLoadError(f"py:{target} is of type {kind}: name a function that returns the model")
        try:
            inspect.signature(function).bind(**options)
        except TypeError as error:
            names = ", ".join(options) or "no options"
            raise OptionError(f"py:{target} cannot be called with {names}: {error}") from None
        with beside(target), blamed_on(f"py:{target}"):
            return function(**options)
    except CodeError as error:
        raise ModelLoadError(f"{error} (a model of your own is named {PYTHON})") from error
    except UnknownNameError as error:
        raise UnknownModelError(f"py:{target}", error.known) from None


def _preprocess(name: str, own: Preprocess | None, changes: Preprocess | Mapping[str, Any] | None) -> Preprocess:
    if isinstance(changes, Preprocess):
        return changes
    if changes is not None and not isinstance(changes, Mapping):
        raise OptionError(f"preprocess takes a Preprocess or some of its values by name, got {changes!r}")
    if own is None and not changes:
        raise OptionError(
            f"{name} does not say how to preprocess images: return LoadedModel(model, Preprocess(...)), "
            "or give preprocess={'size': 224} (--model-option preprocess.size=224)"
        )
    return Preprocess.from_dict({**(own.to_dict() if own else {}), **(changes or {})})


def _packaged_path(name: str) -> Path:
    if name in BUNDLED:
        return BUNDLED[name]
    path = Path(name).expanduser()
    if path.suffix == ".onnx":
        raise ModelLoadError(f"{path.name} is for neotta predict and serve: here name the model it was exported from")
    if path.suffix in CHECKPOINTS:
        raise ModelLoadError(
            f"{path.name} holds weights without their model, and neotta unpickles none: build it in mine.py:\n"
            f"    def build(): net = Net(); net.load_state_dict(torch.load({name!r}, weights_only=True)); return "
            "neotta.LoadedModel(net.eval(), neotta.Preprocess(size=(224, 224)))   # and name it py:mine.py:build"
        )
    if path.suffix == ".safetensors" or path.is_file():
        return path
    if path.is_dir():
        raise ModelLoadError(f"{name!r} is a folder: load one of transformers as 'hf:{name}'")
    if name.count("/") == 1 and ":" not in name:  # as repositories are called
        raise UnknownModelError(name, [f"hf:{name}"])
    known = [*FORMS, *(f"timm:{model}" for model in timm_package().list_models())]
    raise UnknownModelError(name, difflib.get_close_matches(name, known, n=1, cutoff=0.5) or FORMS)


def _finished(
    parts: Parts,
    preprocess: Preprocess,
    name: str,
    labels: Sequence[str] | None,
    norm_eps: float | None,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
) -> LoadedModel:
    model = parts.model
    eps = parts.norm_eps if norm_eps is None else norm_eps
    if eps is not None:
        _set_norm_eps(model, eps)
    dtype = torch.float32 if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise OptionError(f"dtype takes a floating torch dtype such as torch.bfloat16, got {dtype!r}")
    try:
        model = model.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError) as error:  # torch says both ways that a device is not there
        raise OptionError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    names = parts.labels if labels is None else tuple(str(label) for label in labels)
    classes = _num_classes(model)
    if names is not None and classes is not None and len(names) != classes:
        raise OptionError(f"{len(names)} labels for a model of {classes} classes")
    return LoadedModel(model.eval(), preprocess, names, name)


def _set_norm_eps(model: nn.Module, eps: float) -> None:
    if not isinstance(eps, (int, float)) or not 0 < eps < 1:
        raise OptionError(f"norm_eps takes a number between 0 and 1, got {eps!r}")
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    if not norms:
        raise OptionError(f"norm_eps={eps}: {type(model).__name__} has no LayerNorm")
    for norm in norms:
        norm.eps = eps


def _num_classes(model: nn.Module) -> int | None:
    count = getattr(model, "num_classes", None)
    if count is None:
        count = getattr(getattr(model, "config", None), "num_labels", None)
    return count if isinstance(count, int) and count > 0 else None
