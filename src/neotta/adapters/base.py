"""What every method is: an adapter round a model, and the promises it keeps.

1. `adapter(images)` predicts and adapts; the softmax of what comes back is the predicted distribution.
2. `adapter(images, adapt=False)` changes nothing that a later call can see. `reset()` is bit-exact.
3. `state_dict()` in the middle of a stream continues, in another process, as if never stopped.
4. Any batch size from 0; a batch with NaN or Inf is predicted, but never enters the state.
5. An adapter leaves no trace on the model between calls: whatever it changes is changed for the length of one call.
   So several adapters can share a model, and `detach()` gives it back bit for bit.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta._warning import warn
from neotta.adapters.declaration import Declaration
from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    ModelChangedError,
    NeottaError,
    OptionError,
    StateMismatchError,
)
from neotta.neo.head import NEOHead
from neotta.neo.split import evaluating, split
from neotta.neo.statefile import fingerprint, read_state, write_state
from neotta.options import Options

O = TypeVar("O", bound=Options)  # noqa: E741
Classes = Sequence[int] | Sequence[bool] | Tensor


class Adapter(ABC, Generic[O]):
    """A method wrapped round a model.

    A subclass sets the class attributes, and implements `_start`, `_adapt`, `_predict` and `_state`. It need not care
    for gradients (they are off), mode (evaluation), empty batches, or inference tensors: `__call__` does.

    Args:
        model: The classifier. It is used, never changed for longer than a call.
        options: The method's options, checked.
        classes: The classes to keep, as indices or a mask over all; None keeps all.
        head: The name of the linear head, if it cannot be found.
        example: A batch of images to find the head with.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    declaration: ClassVar[Declaration]
    Options: ClassVar[type[Options]] = Options

    def __init__(
        self,
        model: nn.Module,
        options: O,
        *,
        classes: Classes | None = None,
        head: str | None = None,
        example: Tensor | None = None,
    ) -> None:
        if any(isinstance(module, NEOHead) for module in model.modules()):
            raise AlreadyAdaptedError(
                "the model carries a NEO head, which would adapt along: neotta.restore(model) or fold it first"
            )
        self.options = options
        self.model = model
        self.encoder, self.head = split(model, head=head, example=example)
        self.head_name = next(name for name, module in model.named_modules() if module is self.head)
        self.classes = class_indices(classes, self.head.out_features)
        self.skipped = 0
        self._modules = list(model.modules())
        self._detached = False
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._modules):
            self._start()

    # ---- what a method implements

    @abstractmethod
    def _start(self) -> None:
        """Make the initial state; called by the constructor and by `reset`."""

    @abstractmethod
    def _adapt(self, images: Tensor) -> Tensor:
        """Predict a batch, (B, 3, H, W) with B > 0, and adapt to it. Returns logits, (B, C)."""

    @abstractmethod
    def _predict(self, images: Tensor) -> Tensor:
        """Predict a batch with the state as it is. Returns logits, (B, C)."""

    @abstractmethod
    def _state(self) -> dict[str, Tensor]:
        """The tensors that make up the state, by name; the adapter's own, not copies."""

    def _load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a checked state. The default copies into the tensors of `_state`."""
        for name, tensor in self._state().items():
            tensor.copy_(state[name])

    # ---- what a caller uses

    def __call__(self, images: Tensor, adapt: bool = True) -> Tensor:
        """Predict, and adapt unless told not to.

        Args:
            images: A batch, (B, 3, H, W), preprocessed for the model.
            adapt: Whether the state may change.

        Returns:
            Logits, (B, C), C the number of classes kept. No graph hangs on them.
        """
        self._check_model()
        self._check(images, "images", ("batch", "channels", "height", "width"))
        if len(images) == 0:
            return images.new_empty(0, self.num_classes)
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._modules):
            if images.is_inference():  # such a tensor cannot take part in a backward pass
                images = images.clone()
            return self._adapt(images) if adapt else self._predict(images)

    def reset(self) -> None:
        """Go back to the state right after construction, bit for bit."""
        self._check_attached()
        self.skipped = 0
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._modules):
            self._start()

    def detach(self) -> nn.Module:
        """Give the model back, as it was, and end this adapter."""
        self._detached = True
        return self.model

    def configure(self, **changes: Any) -> None:
        """Change options in the middle of a stream."""
        self.options = self.options.changed(self.name, **changes)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the whole state, as tensors by name."""
        return {name: tensor.detach().clone() for name, tensor in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state of `state_dict`; if it does not fit, an error and no change."""
        mine = self._state()
        for name in {**mine, **state}:
            if name not in state or name not in mine:
                here = "misses" if name not in state else "has the unknown"
                raise StateMismatchError(f"this state of method {self.name!r} {here} entry {name!r}")
            if not self._fits(name, mine[name], state[name]):
                raise StateMismatchError(
                    f"entry {name!r} of this state has shape {tuple(state[name].shape)}, "
                    f"{tuple(mine[name].shape)} was expected: it belongs to another model"
                )
        with torch.inference_mode(False), torch.no_grad():
            self._load(state)

    def _fits(self, name: str, mine: Tensor, other: Tensor) -> bool:
        """Whether an entry of a state can be taken over."""
        return mine.shape == other.shape

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as a safetensors file, which appears at once and whole."""
        write_state(path, self.state_dict(), self._about())

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Go on from a file of `save`; if anything is wrong, the state stays as it is.

        Args:
            path: The file.
            strict: Refuse a state that was saved with other head weights.
        """
        state, about = read_state(path)
        mine = self._about()
        if about.get("kind") != "adapter" or about.get("method") != self.name:
            raise StateMismatchError(
                f"{os.fspath(path)!r} holds the state of {about.get('method')!r}, this adapter is {self.name!r}"
            )
        if strict and about.get("head") != mine["head"]:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with other head weights (see strict=False)")
        self.load_state_dict(state)

    @property
    def num_classes(self) -> int:
        """How many columns the logits have."""
        return self.head.out_features if self.classes is None else len(self.classes)

    @property
    def forward_passes(self) -> int:
        """How often the model is run for a batch, at most, with these options."""
        return self.declaration.forward_passes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} on {type(self.model).__name__}: {self.options!r}>"

    # ---- what methods share

    def keep(self, logits: Tensor) -> Tensor:
        """The columns of the classes asked for."""
        return logits if self.classes is None else logits[:, self.classes.to(logits.device)]

    def classify(self, embeddings: Tensor) -> Tensor:
        """What the model's own head makes of embeddings, (B, d): the logits of the classes asked for, (B, C)."""
        return self.keep(F.linear(embeddings, self.head.weight, self.head.bias))

    def finite_rows(self, rows: Tensor, adapt: bool = True) -> Tensor:
        """Which samples can be learnt from, as a mask (B,); those with NaN or Inf are counted and warned of.

        Args:
            rows: Logits, embeddings or entropies, one row for each sample, (B, ...).
            adapt: Whether there is anything to count: without adapting, nothing is skipped.
        """
        finite = torch.isfinite(rows).flatten(1).all(dim=1)
        bad = len(finite) - int(finite.sum())
        if bad and adapt:
            self.skip(bad, f"{bad} of {len(finite)} embeddings hold NaN or Inf")
        return finite

    def skip(self, count: int, what: str) -> None:
        """Count and warn of samples that are predicted but not adapted to."""
        self.skipped += count
        warn(f"{what}: predicted, but not adapted to")

    def _about(self) -> dict[str, Any]:
        options = {name: value for name, value in self.options.given().items() if not callable(value)}
        return {
            "kind": "adapter",
            "method": self.name,
            "options": {name: str(value) for name, value in options.items()},
            "head": fingerprint(dict(self.head.named_parameters(recurse=False))),
        }

    def _check_attached(self) -> None:
        if self._detached:
            raise NeottaError("this adapter is detached: make a new one with neotta.create")

    def _check_model(self) -> None:
        """Whether the model is still the one that this adapter was made for."""
        self._check_attached()
        try:
            what = "" if self.model.get_submodule(self.head_name) is self.head else "exchanged"
        except AttributeError:
            what = "removed"
        if what:
            raise ModelChangedError(
                f"the head {self.head_name!r} of the model was {what} after this adapter was made: make a new one"
            )

    def _check(self, given: Tensor, what: str, shape: tuple[str | int, ...]) -> None:
        """Whether a batch can be run; sizes of `shape` that are words may be of any size."""
        fits = (
            isinstance(given, Tensor)
            and given.is_floating_point()
            and given.dim() == len(shape)
            and all(isinstance(want, str) or want == size for want, size in zip(shape, given.shape, strict=True))
        )
        if not fits:
            got = f"{given.dtype} of {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            expected = f"a floating point tensor of ({', '.join(map(str, shape))})"
            raise InputError(f"{what} of this model are {expected}, got {got}")
        weight = self.head.weight
        if given.device != weight.device:
            raise InputError(f"the {what} are on {given.device}, the model is on {weight.device}: move one of them")
        if given.dtype != weight.dtype and not torch.is_autocast_enabled(given.device.type):
            raise InputError(f"the {what} are {given.dtype}, the model is {weight.dtype}: convert one of them")


class EmbeddingAdapter(Adapter[O]):
    """A method that needs nothing but embeddings, and so can run from a cache of them."""

    @abstractmethod
    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        """Predict a batch of embeddings, (B, d) with B > 0. Returns logits, (B, C)."""

    def _adapt(self, images: Tensor) -> Tensor:
        return self._embeddings(self.encode(images), adapt=True)

    def _predict(self, images: Tensor) -> Tensor:
        return self._embeddings(self.encode(images), adapt=False)

    def encode(self, images: Tensor) -> Tensor:
        """Embeddings of a batch of images, (B, d)."""
        return self.encoder(images)  # type: ignore[no-any-return]

    def predict_embeddings(self, embeddings: Tensor, adapt: bool = True) -> Tensor:
        """As a call with images, from their embeddings, (B, d)."""
        self._check_model()
        self._check(embeddings, "embeddings", ("batch", self.head.in_features))
        if len(embeddings) == 0:
            return embeddings.new_empty(0, self.num_classes)
        with torch.inference_mode(False), torch.no_grad():
            return self._embeddings(embeddings, adapt)


def class_indices(classes: Classes | None, total: int) -> Tensor | None:
    """Turn indices or a mask over `total` classes into a tensor of indices, (C,).

    Raises:
        OptionError: An index is out of range or given twice, the mask has another length, or nothing is kept.
    """
    if classes is None:
        return None
    try:
        kept = torch.as_tensor(classes).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(f"classes takes a list of class indices or a mask, got {classes!r}") from None
    if kept.dtype == torch.bool:
        if kept.shape != (total,):
            raise OptionError(f"classes is a mask of {tuple(kept.shape)}: the model has {total} classes")
        kept = kept.nonzero().flatten()
    if kept.dim() != 1 or kept.is_floating_point() or len(kept) == 0:
        raise OptionError("classes takes a list of class indices or a mask, and keeps at least one class")
    if kept.min() < 0 or kept.max() >= total or len(set(kept.tolist())) != len(kept):
        raise OptionError(f"classes must be different indices from 0 to {total - 1}")
    return kept.long()
