"""Image classifiers of Hugging Face, with the preprocessing of their image processor."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neotta._extras import need
from neotta._torchvision import guard
from neotta.errors import ModelLoadError, NeottaError, OptionError
from neotta.models._hf_preprocess import preprocess_from_processor
from neotta.models._hub import Repository
from neotta.models._weights import Parts, Request, check_fit, labels_beside, read_tensors

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_hf(name: str, request: Request) -> Parts:
    """Load the image classifier in the folder or repository `name`.

    `kwargs` go to transformers' `from_pretrained`; `revision` names a repository's branch, tag or commit.
    """
    guard()
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
        raise ModelLoadError(f"cannot load hf:{name}: {_first_line(error)}") from error
    beside = labels_beside(checkpoint) if checkpoint is not None else None
    return Parts(model, preprocess, beside or _labels(config))


def _folder(name: str, revision: str | None, *, weights: bool) -> Path:
    """Return the folder `name`, or the cached one of the repository of this name."""
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
    model, info = AutoModelForImageClassification.from_pretrained(
        folder,
        config=config,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **options,
    )
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
    model, info = kind.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **options,
    )
    complaint = f"{checkpoint.name} does not fit {kind.__name__}"
    check_fit(complaint, sorted(info["missing_keys"]), sorted(info["unexpected_keys"]), info["mismatched_keys"])
    return model


def _labels(config: Any) -> tuple[str, ...] | None:
    names = {int(index): str(label) for index, label in (config.id2label or {}).items()}
    labels = tuple(names[index] for index in sorted(names))
    invented = all(label == f"LABEL_{index}" for index, label in enumerate(labels))
    return None if invented else labels


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
