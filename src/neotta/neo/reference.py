"""`neotta.reference`: where clean data lies, measured once before deployment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from neotta._warning import warn
from neotta.errors import InputError, OptionError, StateFileError, StateMismatchError
from neotta.neo.class_means import Array, ClassMeans, ClassSums
from neotta.neo.find_head import find_heads
from neotta.neo.head import NEOHead
from neotta.neo.head_views import Head, HeadView, embeddings_of, linear_view
from neotta.neo.model_inputs import Inputs
from neotta.neo.split import evaluating
from neotta.neo.statefile import fingerprint, read_arrays, write_arrays
from neotta.neo.surgery import check_module, stand_ins

_BATCH = 64
FEW = 64  # below so many samples the mean is hardly known


class HeadReference(NamedTuple):
    """Where clean data lies, as one head sees it.

    Attributes:
        samples: Number of clean samples.
        embedding: Mean of the embeddings, (d,): rules on embeddings re-center towards it.
        origin: Mean of the centred logits, (C,): rules on logits re-center towards it.
        classes: Each class's own mean logits, and how often it is predicted.
    """

    samples: int
    embedding: Array
    origin: Array
    classes: ClassMeans

    def arrays(self) -> dict[str, Array]:
        """All numbers by name."""
        return {
            "samples": np.array(self.samples),
            "embedding": self.embedding,
            "origin": self.origin,
            "prior": self.classes.prior,
            "deviations": self.classes.deviations,
            "peak": np.array(self.classes.peak),
            "free": self.classes.free,
        }

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> HeadReference:
        """Create one from what `arrays` returned."""
        classes = ClassMeans(arrays["prior"], arrays["deviations"], float(arrays["peak"]), arrays["free"])
        return cls(int(arrays["samples"]), arrays["embedding"], arrays["origin"], classes)


class Reference:
    """Where clean data lies, for each head of a model. Create it with `neotta.reference`.

    Attributes:
        heads: What was measured, by the name of the head.
        fingerprints: A hash of the weights of each head.
    """

    def __init__(self, heads: Mapping[str, HeadReference], fingerprints: Mapping[str, str]) -> None:
        self.heads = dict(heads)
        self.fingerprints = dict(fingerprints)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, atomically."""
        write_arrays(path, self.arrays(), self.about())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Reference:
        """Read a file written by `save`.

        Raises:
            StateFileError: The file is missing or damaged.
            StateMismatchError: It is not a reference.
        """
        arrays, about = read_arrays(path)
        if about.get("kind") != "reference":
            raise StateMismatchError(f"{os.fspath(path)!r} is not a reference: it contains a {about.get('kind')!r}")
        return cls.of(arrays, about)

    def arrays(self) -> dict[str, Array]:
        """All numbers by name."""
        return {f"{name}:{key}": array for name, head in self.heads.items() for key, array in head.arrays().items()}

    def about(self) -> dict[str, Any]:
        """The description of a file."""
        return {"kind": "reference", "heads": self.fingerprints}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> Reference:
        """Create one from its arrays and description.

        Raises:
            StateMismatchError: Entries are missing, have wrong shapes, or hold NaN or Inf.
        """
        heads = {}
        try:
            for name in about["heads"]:
                mine = {key.partition(":")[2]: array for key, array in arrays.items() if key.partition(":")[0] == name}
                heads[name] = HeadReference.of(mine)
                _check(heads[name])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateMismatchError(f"this reference is incomplete or damaged: {error}") from error
        return cls(heads, about["heads"])

    @property
    def digest(self) -> str:
        """A hash of everything measured."""
        return fingerprint(self.arrays())

    def belongs_to(self, heads: Mapping[str, nn.Module]) -> None:
        """Declare that these heads are the ones it was measured with, whatever their weights."""
        self.fingerprints = {name: fingerprint(dict(linear.named_parameters())) for name, linear in heads.items()}

    def check(self, heads: Mapping[str, nn.Module]) -> None:
        """Check that this was measured with the same heads.

        Raises:
            StateMismatchError: It belongs to another model.
        """
        if set(heads) != set(self.heads):
            raise StateMismatchError(
                f"the reference was measured at the head {', '.join(self.heads)}, the model's head is "
                f"{', '.join(heads)}: measure it again with neotta.reference(model, images)"
            )
        for name, linear in heads.items():
            if fingerprint(dict(linear.named_parameters())) != self.fingerprints[name]:
                raise StateMismatchError(
                    f"the reference belongs to another model: the weights of {name!r} differ; measure it again with "
                    "neotta.reference(model, images)"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        parts = [f"{name}: {head.samples} samples, {len(head.origin)} classes" for name, head in self.heads.items()]
        return f"Reference({'; '.join(parts)})"


def reference(
    model: nn.Module,
    images: Tensor | Iterable[Any] | str | os.PathLike[str],
    *,
    head: str | None = None,
    example: Inputs | None = None,
) -> Reference:
    """Measure where clean data lies, so that rules re-center towards it instead of the origin.

    Run it once, before deployment, on a few hundred images like those the model was trained on; labels are not needed.
    Pass the result, or a file it was saved to, to `neotta.adapt(model, reference=...)`.

    Args:
        model: The classifier. If it is adapted, the plain model is measured; nothing changes.
        images: Prepared images, (N, 3, H, W); or batches of them, as a `DataLoader` gives (of pairs and dictionaries,
            the images are used); or a .npy or .npz file of prepared images; or a file written by `Reference.save`.
        head: Name of the linear layer, if it cannot be found.
        example: A batch of images to find the head with, if a blank image does not work; by default some of a tensor of
            images.

    Returns:
        The reference: `reference.save(path)` writes it to a file.

    Raises:
        InputError: There are no usable images.
        StateMismatchError: The file is a reference of another model.
    """
    check_module(model)
    if example is None and isinstance(images, Tensor) and images.dim() > 1 and len(images) > 1:
        example = images[:2]
    found = _heads(model, head, example)
    fingerprints = {name: fingerprint(dict(linear.named_parameters())) for name, linear in found.items()}
    if isinstance(images, (str, os.PathLike)):
        if Path(images).suffix not in (".npy", ".npz"):
            loaded = Reference.load(images)
            loaded.check(found)
            return loaded
        images = _read_images(images)
    sums = {name: _HeadSums(linear) for name, linear in found.items()}
    with torch.inference_mode(), evaluating(list(model.modules())), _frozen(model):
        hooks = [linear.register_forward_pre_hook(sums[name]) for name, linear in found.items()]
        try:
            for batch in _batches(images):
                model(batch.to(next(iter(found.values())).weight.device))
        finally:
            for hook in hooks:
                hook.remove()
    return Reference({name: each.result(name) for name, each in sums.items()}, fingerprints)


def as_reference(given: Reference | str | os.PathLike[str]) -> Reference:
    """A reference, or the one in a file.

    Raises:
        OptionError: It is neither.
    """
    if isinstance(given, Reference):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Reference.load(given)
    raise OptionError(
        f"reference is a {type(given).__name__}: expected the result of neotta.reference(model, images), or a file"
    )


def measured(linear: nn.Linear, embeddings: Tensor, name: str) -> HeadReference:
    """Measure where clean embeddings, (N, d), lie, as a head of this name sees them.

    Raises:
        InputError: There are fewer than two.
    """
    sums = _HeadSums(linear)
    with torch.inference_mode():
        sums(linear, (embeddings,))
    return sums.result(name)


class _HeadSums:
    """Sums over what one head gets and returns; a hook of the head."""

    def __init__(self, head: Head) -> None:
        self._head, self._linear = head, linear_view(head)
        self._embeddings = np.zeros(self._linear.in_features)
        bias = self._linear.bias
        known = None if bias is None else bias.detach().double().cpu().numpy()
        self._classes = ClassSums(self._linear.out_features, known)
        self._rejected = 0

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        every = embeddings_of(self._head, args[0]).reshape(-1, self._linear.in_features)
        rows = every[every.isfinite().all(1)]
        logits = nn.functional.linear(rows, self._linear.weight, self._linear.bias)
        self._rejected += len(every) - len(rows)
        self._embeddings += rows.double().sum(0).cpu().numpy()
        self._classes.add(logits.double().cpu().numpy())

    def result(self, name: str) -> HeadReference:
        count = self._classes.count
        if count < 2:
            raise InputError(f"the head {name!r} got {count} clean samples: pass at least two, better a few hundred")
        if self._rejected:
            warn(f"{self._rejected} clean samples contain NaN or Inf and were left out of the reference")
        if count < FEW:
            warn(f"a reference of {count} clean samples is rough: use a few hundred")
        return HeadReference(count, self._embeddings / count, self._classes.origin, self._classes.means())


def _heads(model: nn.Module, head: str | None, example: Inputs | None) -> dict[str, Head]:
    """The heads by name; of an adapted model, those that adapt."""
    if not stand_ins(model):
        found = find_heads(model, head, example)
        if any(isinstance(layer, HeadView) for layer in found.values()):
            raise InputError("a reference is measured at a linear head, and this model has a cosine classifier")
        return found
    found = {name: module for name, module in model.named_modules() if isinstance(module, NEOHead)}
    if any(type(neo) is not NEOHead for neo in found.values()):
        raise InputError("this model is not adapted at a linear layer: neotta.restore(model) first")
    if any(neo.followers for neo in found.values() if isinstance(neo, NEOHead)):
        raise InputError("this model is adapted with neo-bn, which changes its embeddings: neotta.restore(model) first")
    return found


class _frozen:
    """No head of a model adapts inside the block."""

    def __init__(self, model: nn.Module) -> None:
        self._adapting = [module for module in model.modules() if isinstance(module, NEOHead) and module.adapting]

    def __enter__(self) -> None:
        for neo in self._adapting:
            neo.freeze()

    def __exit__(self, *_: object) -> None:
        for neo in self._adapting:
            neo.unfreeze()


def _batches(images: Tensor | Iterable[Any]) -> Iterator[Tensor]:
    if isinstance(images, Tensor):
        if images.dim() < 2:
            raise InputError(f"expected a batch of images, got a tensor of shape {tuple(images.shape)}")
        yield from (images[start : start + _BATCH] for start in range(0, len(images), _BATCH))
        return
    if not isinstance(images, Iterable):
        raise InputError(f"expected images, batches of images or a file, got {type(images).__name__}")
    for batch in images:
        if isinstance(batch, Mapping):
            batch = batch.get("pixel_values", batch.get("images", batch.get("image")))
        elif isinstance(batch, (tuple, list)) and batch:
            batch = batch[0]
        if not isinstance(batch, Tensor):
            raise InputError(f"expected batches of images as tensors, got {type(batch).__name__}")
        yield batch


def _read_images(path: str | os.PathLike[str]) -> Tensor:
    try:
        loaded = np.load(path, allow_pickle=False)
        array = (
            loaded if isinstance(loaded, np.ndarray) else loaded["images" if "images" in loaded else loaded.files[0]]
        )
    except (OSError, ValueError, IndexError) as error:
        raise StateFileError(f"cannot read images from {os.fspath(path)!r}: {error}") from error
    if array.ndim != 4 or array.dtype.kind != "f":
        raise InputError(
            f"{os.fspath(path)!r} holds {array.dtype} of shape {array.shape}: expected prepared images, (N, 3, H, W), "
            "as floating point numbers; `neotta check MODEL --data FOLDER --reference FILE` prepares pictures"
        )
    return torch.from_numpy(array)


def _check(head: HeadReference) -> None:
    classes = len(head.origin)
    by_class = dict.fromkeys(("prior", "origin", "free"), (classes,))
    shapes: dict[str, tuple[int, ...]] = {**by_class, "deviations": (classes, classes), "peak": (), "samples": ()}
    for name, array in head.arrays().items():
        if name in shapes and array.shape != shapes[name]:
            raise ValueError(f"{name!r} has shape {array.shape}, expected {shapes[name]}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name!r} holds NaN or Inf")
    if head.samples < 2 or (head.classes.prior <= 0).any() or not head.classes.peak > 0:
        raise ValueError("counts, shares and the peak must be positive")
