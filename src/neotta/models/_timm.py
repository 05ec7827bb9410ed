"""Models of timm's registry, with the preprocessing that timm has on record for their weights."""

from __future__ import annotations

import difflib
import importlib
import math
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neotta._extras import need
from neotta.errors import ModelLoadError, OptionError, UnknownModelError
from neotta.models._weights import Parts, Repository, Request, labels_beside, load_strictly, read_tensors
from neotta.models.preprocess import Preprocess

# Options of timm that could make it unpickle a file, or return something other than a classifier.
_FORBIDDEN = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "features_only")

# Operators that torchvision looks for when it is imported.
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declaring = threading.Lock()
_declared: list[Any] = []  # torch.library.Library: the declarations last as long as the object


def load_timm(name: str, request: Request) -> Parts:
    """Build the model `name` of timm's registry and fill it from a checkpoint, the hub, or at random."""
    _check_name(name)
    checkpoint, num_classes, preprocess, pretrained, kwargs = request
    weights = _published(name) if pretrained and checkpoint is None else None
    classes = {} if num_classes is None else {"num_classes": num_classes}
    model = create_timm(name, {**kwargs, **classes}, weights)
    labels = None
    if checkpoint is not None:
        load_strictly(model, read_tensors(checkpoint), checkpoint.name)
        labels = labels_beside(checkpoint)
    elif weights is not None:
        labels = _published_labels(name, model)
    return Parts(model, preprocess or _preprocess_of(model, kwargs), labels)


def parts_of_timm(model: nn.Module) -> Parts:
    """What timm has on record for a model that the caller made."""
    side = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return Parts(model, _preprocess_of(model, {"img_size": side}), _imagenet_labels(model))


def preprocess_from_timm(config: Mapping[str, Any]) -> Preprocess:
    """Translate timm's data config (`timm.data.resolve_data_config`)."""
    channels, height, width = config["input_size"]
    if channels != 3:
        raise OptionError(f"the model takes images of {channels} channels; neotta prepares RGB images only")
    scaled = (math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"]))
    mode = config["crop_mode"]
    if mode == "border" or (mode == "center" and height != width):
        raise OptionError(
            f"crop mode {mode!r} at {height} x {width} is not one that neotta knows: "
            "say what to do with load_model(..., preprocess=Preprocess(...))"
        )
    return Preprocess(
        size=(height, width),
        resize=scaled if mode == "squash" else scaled[0],
        crop=True,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def guard_torchvision() -> bool:
    """Let timm and transformers import a torchvision that was built for another torch. Call it before importing them.

    PyPI's torchvision is built for CUDA. Beside a CPU build of torch its operators do not load, and importing it raises
    "operator torchvision::nms does not exist". Preparing images does not need these operators, only their names.

    Returns:
        Whether torchvision is of that kind: without this call its import fails.
    """
    with _declaring:
        try:
            importlib.import_module("torchvision")
        except ImportError:
            return False
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
            _declared.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
            for schema in _OPERATORS:
                _declared[-1].define(schema)
    return bool(_declared)


def timm_package() -> Any:
    """Import timm."""
    guard_torchvision()
    return need("timm", "making a model of timm's")


def _check_name(name: str) -> None:
    timm = timm_package()
    architecture, _, tag = name.partition(".")
    known = timm.list_models()
    if timm.is_model(architecture):
        known = timm.list_pretrained(f"{architecture}.*")
        if not tag or name in known:
            return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    raise UnknownModelError(f"timm:{name}", [f"timm:{n}" for n in near] or ["those that `neotta models '*'` lists"])


def _published(name: str) -> Path:
    """Fetch the weights that timm has on record for `name`; they have to be safetensors."""
    config = timm_package().get_pretrained_cfg(name)
    offer = "pass checkpoint='<file>.safetensors', or pretrained=False for random weights"
    repo = getattr(config, "hf_hub_id", None)
    filename = getattr(config, "hf_hub_filename", None) or "model.safetensors"
    if not repo or not filename.endswith(".safetensors"):
        raise ModelLoadError(f"the weights of {name!r} are not published as safetensors: {offer}")
    repository = Repository(repo, offer=offer)
    weights = repository.find(filename)
    if weights is None:
        raise repository.missing(filename)
    return weights


def create_timm(name: str, kwargs: Mapping[str, Any], weights: Path | None = None) -> nn.Module:
    """Make a model of timm's registry, with the published weights in the file `weights` or random ones."""
    forbidden = [option for option in _FORBIDDEN if option in kwargs]
    if forbidden:
        raise OptionError(f"{', '.join(forbidden)}: not for load_model; give weights with checkpoint=")
    # timm treats this file as its own download: keys renamed, positions resampled, another head if asked.
    overlay = {"file": str(weights), "custom_load": False} if weights else None
    try:
        model: nn.Module = timm_package().create_model(
            name, pretrained=weights is not None, pretrained_cfg_overlay=overlay, **kwargs
        )
    except TypeError as error:
        raise OptionError(f"timm:{name} cannot be made with these options: {error}") from error
    except RuntimeError as error:
        raise ModelLoadError(f"timm:{name} cannot be made: {error}") from error
    return model


def _published_labels(name: str, model: nn.Module) -> tuple[str, ...] | None:
    """Return the WordNet ids of an ImageNet model's classes; warn of a head that was not trained."""
    trained = timm_package().get_pretrained_cfg(name).num_classes
    if model.num_classes != trained:
        warnings.warn(
            f"the weights of timm:{name} have {trained} classes: its head of {model.num_classes} is random",
            stacklevel=4,
        )
    return _imagenet_labels(model)


def _imagenet_labels(model: Any) -> tuple[str, ...] | None:
    from timm.data import ImageNetInfo, infer_imagenet_subset

    if model.num_classes != model.pretrained_cfg["num_classes"]:
        return None
    subset = infer_imagenet_subset({"num_classes": model.num_classes})
    return tuple(ImageNetInfo(subset).label_names()) if subset else None


def _preprocess_of(model: nn.Module, kwargs: Mapping[str, Any]) -> Preprocess:
    from timm.data import resolve_data_config

    config = resolve_data_config(model=model)
    _, height, width = config["input_size"]
    side = kwargs.get("img_size") or (height, width)
    height, width = side if isinstance(side, (tuple, list)) else (side, side)
    return preprocess_from_timm({**config, "input_size": (kwargs.get("in_chans", 3), height, width)})
