"""Image classifiers of Hugging Face, with the preprocessing of their image processor."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from neotta._extras import need
from neotta.errors import ModelLoadError, NeottaError, OptionError
from neotta.models._timm import guard_torchvision, preprocess_from_timm
from neotta.models._weights import Parts, Repository, Request, check_fit, labels_beside, read_tensors
from neotta.models.preprocess import INTERPOLATIONS, Preprocess

_TOLERANCE = 5 / 255  # mean difference; the backends of transformers differ by less, a wrong step by more
_REPORTED = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # what does not fit: we say it ourselves
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_hf(name: str, request: Request) -> Parts:
    """Load the image classifier in the folder or repository `name`.

    `kwargs` go to transformers' `from_pretrained`; `revision` names a repository's branch, tag or commit.
    """
    guard_torchvision()
    checkpoint, num_classes, preprocess, pretrained, kwargs = request
    transformers = need("transformers", f"loading hf:{name}")
    options = dict(kwargs)
    if "use_safetensors" in options:
        raise OptionError("use_safetensors: not with load_model, which reads nothing else")
    # Never asked on the terminal, as transformers would: code runs only where the caller said so.
    trust = {"trust_remote_code": bool(options.pop("trust_remote_code", False))}
    folder = _folder(name, options.pop("revision", None), weights=pretrained and checkpoint is None)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **trust)
        trained = config.num_labels
        if num_classes is not None:
            config.num_labels = num_classes
        if checkpoint is not None:
            model = _from_checkpoint(checkpoint, config, options, trust)
        elif pretrained:
            model = _from_folder(folder, config, trained, {**options, **trust})
        else:
            model = transformers.AutoModelForImageClassification.from_config(config, **options, **trust)
        if preprocess is None:
            processor = transformers.AutoImageProcessor.from_pretrained(folder, **trust)
            preprocess = preprocess_from_processor(processor, config)
    except NeottaError:
        raise
    except TypeError as error:
        raise OptionError(f"hf:{name} cannot be made with these options: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelLoadError(f"cannot load hf:{name}: {reason}") from error
    beside = labels_beside(checkpoint) if checkpoint is not None else None
    return Parts(model, preprocess, beside or _labels(config))


def parts_of_hf(model: Any) -> Parts:
    """What is beside the weights of a model that the caller loaded: in their folder, or in their repository."""
    from transformers import AutoImageProcessor

    config = model.config
    try:
        folder = _folder(config.name_or_path, getattr(config, "_commit_hash", None), weights=False)
        processor = AutoImageProcessor.from_pretrained(folder)
    except (OSError, ValueError, ModelLoadError):  # there is none, or it cannot be reached
        return Parts(model, None, _labels(config))
    return Parts(model, preprocess_from_processor(processor, config), _labels(config))


def _folder(name: str, revision: str | None, *, weights: bool) -> Path:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return _download(name, revision, weights=weights)
    if revision is not None:
        raise OptionError(f"revision={revision!r} needs a repository, but {name!r} is a folder")
    if weights and not (folder / _WEIGHTS).is_file() and not (folder / _INDEX).is_file():
        raise _no_safetensors(name)
    return folder


def _download(repo: str, revision: str | None, *, weights: bool) -> Path:
    """Fetch what is needed of a repository, and nothing else: no pickle, no code."""
    offer = (
        "give the folder with the model's files, hf:<folder>; with timm:<architecture>, checkpoint= and "
        "pretrained=False need no hub"
    )
    repository = Repository(repo, offer=offer, revision=revision)
    config = repository.find("config.json")
    if config is None:
        raise repository.missing("config.json")
    for optional in ("preprocessor_config.json", "processor_config.json"):
        repository.find(optional)
    if weights and repository.find(_WEIGHTS) is None:
        index = repository.find(_INDEX)
        if index is None:
            raise _no_safetensors(repo) if repository.reached else repository.missing(_WEIGHTS)
        for shard in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            if repository.find(shard) is None:
                raise repository.missing(shard)
    return config.parent


def _no_safetensors(name: str) -> ModelLoadError:
    return ModelLoadError(
        f"hf:{name} has no {_WEIGHTS}, and neotta reads no other weights: unpickling a file can run code. "
        "Convert them where you trust them, with transformers: model.save_pretrained(folder)"
    )


def _from_folder(folder: Path, config: Any, trained: int, options: Mapping[str, Any]) -> nn.Module:
    """Load the published weights; only a head of another number of classes may stay random."""
    from transformers import AutoModelForImageClassification

    model: nn.Module
    load = AutoModelForImageClassification.from_pretrained
    model, info = load(folder, config=config, use_safetensors=True, **_REPORTED, **options)
    if config.num_labels != trained:
        warnings.warn(f"the weights have {trained} classes: the head of {config.num_labels} is random", stacklevel=4)
    else:
        complaint = f"these weights are not those of a whole {type(model).__name__}"
        check_fit(complaint, sorted(info["missing_keys"]), [], info["mismatched_keys"])
    return model


def _from_checkpoint(checkpoint: Path, config: Any, options: Mapping[str, Any], trust: dict[str, bool]) -> nn.Module:
    """Load a file strictly, in transformers' own way: its names in files and in models differ."""
    from transformers import AutoModelForImageClassification

    tensors = read_tensors(checkpoint)
    with torch.device("meta"):
        kind = type(AutoModelForImageClassification.from_config(config, **trust))
    model: nn.Module
    model, info = kind.from_pretrained(None, config=config, state_dict=tensors, **_REPORTED, **options)
    complaint = f"{checkpoint.name} does not fit {kind.__name__}"
    check_fit(complaint, sorted(info["missing_keys"]), sorted(info["unexpected_keys"]), info["mismatched_keys"])
    return model


def _labels(config: Any) -> tuple[str, ...] | None:
    names = {int(index): str(label) for index, label in (config.id2label or {}).items()}
    labels = tuple(names[index] for index in sorted(names))
    invented = all(label == f"LABEL_{index}" for index, label in enumerate(labels))
    return None if invented else labels


# ---- image processors


def preprocess_from_processor(processor: Any, config: Any) -> Preprocess:
    """Translate an image processor."""
    timm_config = getattr(processor, "data_config", None)  # of a timm model in transformers' wrapper
    if timm_config is not None:
        return preprocess_from_timm(timm_config)
    size, resize, crop = _geometry(processor, config)
    mean, std = _moments(processor)
    resample = getattr(processor, "resample", None)
    names = {int(value): name for name, value in INTERPOLATIONS.items()}
    ready = Preprocess(
        size=size,
        resize=resize,
        crop=crop,
        interpolation="bilinear" if resample is None else names[int(resample)],
        mean=mean,
        std=std,
        crop_rounding="down",
    )
    _compare(processor, ready)
    return ready


def _geometry(processor: Any, config: Any) -> tuple[tuple[int, int], int | tuple[int, int] | None, bool]:
    resize: int | tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    crop = bool(getattr(processor, "do_center_crop", False))
    if getattr(processor, "do_resize", False):
        sides = dict(processor.size)
        if set(sides) == {"height", "width"}:
            size = resize = (sides["height"], sides["width"])
        elif set(sides) == {"shortest_edge"}:
            edge = resize = sides["shortest_edge"]
            size = (edge, edge)
            crop_pct = getattr(processor, "crop_pct", None)
            if crop_pct is not None:  # ConvNeXt: crop small sizes, squash large ones
                crop = edge < 384
                resize = int(edge / crop_pct) if crop else size
        else:
            raise _untranslatable(processor, f"it resizes by {sides}")
    if getattr(processor, "do_center_crop", False):
        sides = dict(processor.crop_size)
        size = (sides["height"], sides["width"])
    if size is None:
        side = config.image_size
        size = (side, side) if isinstance(side, int) else (side[0], side[1])
    return size, resize, crop


def _moments(processor: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Put rescaling and normalising together, as mean and std of pixel values in 0..1."""
    scale, offset = 255.0, 0.0
    if getattr(processor, "do_rescale", False):
        scale *= processor.rescale_factor
        offset = 1.0 if getattr(processor, "rescale_offset", False) else 0.0
    mean, std = [0.0] * 3, [1.0] * 3
    if getattr(processor, "do_normalize", False):
        mean, std = list(processor.image_mean), list(processor.image_std)
    return tuple((m + offset) / scale for m in mean), tuple(s / scale for s in std)


def _compare(processor: Any, ready: Preprocess) -> None:
    """Prepare one image both ways: a processor may do more than its settings tell."""
    height, width = ready.size
    if ready.crop or isinstance(ready.resize, tuple):
        height, width = height + height // 4, width + width // 8
    y, x = np.mgrid[:height, :width] * (2 * np.pi / 64)
    waves = np.stack([np.sin(x), np.sin(y), np.sin(x + y)], axis=-1)
    from PIL import Image

    image = Image.fromarray((128 + 80 * waves).astype(np.uint8))
    theirs = torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0]).float()
    ours = ready(image)
    if theirs.shape != ours.shape:
        raise _untranslatable(processor, f"it gives {tuple(theirs.shape)} for {tuple(ours.shape)}")
    difference = (ready.denormalize(theirs) - ready.denormalize(ours)).abs().mean().item()
    if not difference < _TOLERANCE:
        raise _untranslatable(processor, f"pixels differ by {difference:.2g} of their range")


def _untranslatable(processor: Any, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"neotta cannot prepare images as {type(processor).__name__} does ({why}): "
        "say what to do with load_model(..., preprocess=Preprocess(...))"
    )
