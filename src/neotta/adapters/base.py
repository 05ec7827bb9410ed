"""The base classes of all methods: an adapter that wraps a model, and the promises it keeps.

1. `adapter(images)` predicts and adapts; the softmax of the result is the predicted distribution.
2. `adapter(images, adapt=False)` changes nothing that a later call can see. `reset()` is bit-exact.
3. A `state_dict()` taken in the middle of a stream continues exactly, in another process too.
4. Any batch size from 0; a batch with NaN or Inf is predicted, but never enters the state.
5. Between calls the model is unchanged, bit for bit, so that several adapters can share it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta._warning import warn
from neotta.adapters._inputs import Classes, check_batch, check_entry, check_tensors, class_indices, takes_images
from neotta.adapters.declaration import Declaration
from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    ModelChangedError,
    NeottaError,
    StateError,
    StateMismatchError,
)
from neotta.neo.context import has_weights, is_paused
from neotta.neo.head import NEOHead
from neotta.neo.head_views import layer_of
from neotta.neo.model_inputs import Inputs, batch_size, each, evaluating
from neotta.neo.split import split
from neotta.neo.statefile import fingerprint, part_of, read_state, write_state
from neotta.options import Options

O = TypeVar("O", bound=Options)  # noqa: E741

COLLAPSE = 256
"""Number of predictions of one class in a row after which a warning says that the model may have collapsed."""


class Declared(NamedTuple):
    """What is known of a part of a state; see `Adapter.add_state`."""

    grows: bool = False
    any_value: bool = False


class Adapter(ABC, Generic[O]):
    """A method that wraps a model.

    A subclass sets the class attributes and implements `_start`, `_adapt` and `_predict`. When these are called,
    gradients are off, the model is in evaluation mode, and the batch is neither empty nor an inference tensor.

    Args:
        model: The classifier; unchanged between calls.
        options: The method's validated options.
        classes: The classes to keep, as indices or a mask over all; None keeps all.
        head: The name of the linear head, if it cannot be found.
        example: A batch that the model takes, if the model must be run to find the head and does not take noise.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    """Raised when the predictions change: `neotta run` then measures the method again."""
    declaration: ClassVar[Declaration]
    Options: ClassVar[type[Options]] = Options
    heads: Mapping[str, NEOHead] = MappingProxyType({})
    """The NEO heads of a method that has some, by the names of the model's own heads."""
    _declared: Mapping[str, Declared] = MappingProxyType({})
    _streak: tuple[int, int] = (-1, 0)
    """The class predicted last, and how often in a row; negative after the warning.

    `_start` does not reset it, since some methods start again with every batch, and they can collapse too.
    """

    def __init__(
        self,
        model: nn.Module,
        options: O,
        *,
        classes: Classes | None = None,
        head: str | None = None,
        example: Inputs | None = None,
    ) -> None:
        if any(isinstance(module, NEOHead) for module in model.modules()):
            raise AlreadyAdaptedError(
                "the model has a NEO head, which would adapt as well: call neotta.restore or neotta.fold first"
            )
        self.options = options
        self.model = model
        self.encoder, self.head = split(model, head=head, example=example)
        self.head_name = next(name for name, module in model.named_modules() if module is layer_of(self.head))
        self.classes = class_indices(classes, self.head.out_features)
        self.skipped = 0
        self._modules = list(model.modules())
        self._detached = False
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._modules):
            self._start()

    # ---- implemented by a method

    @abstractmethod
    def _start(self) -> None:
        """Declare the state by `add_state`, as it is in the beginning; called by the constructor and by `reset`."""

    @abstractmethod
    def _adapt(self, images: Tensor) -> Tensor:
        """Predict a batch, (B, 3, H, W) with B > 0, and adapt to it. Returns logits, (B, C)."""

    @abstractmethod
    def _predict(self, images: Tensor) -> Tensor:
        """Predict a batch with the state as it is. Returns logits, (B, C)."""

    # ---- for callers

    def __call__(self, images: Inputs, adapt: bool = True) -> Tensor:
        """Predict, and adapt unless told not to, or paused by `neotta.paused(adapter)`.

        Args:
            images: A batch that the model takes: images, (B, 3, H, W), or another tensor, or a dict of tensors by name,
                preprocessed for the model. Methods that augment or cut images (`declaration.pixels`) take images alone.
            adapt: Whether the state may change.

        Returns:
            Logits, (B, C) for C kept classes, without gradients.
        """
        self._check_model()
        self._check_inputs(images)
        samples = batch_size(images)
        adapt = self._may_adapt(adapt)
        if samples == 0:
            return self.head.weight.new_empty(0, self.num_classes)
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._modules):
            # A tensor of inference mode cannot take part in a backward pass.
            images = each(images, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
            # Methods that declare no need of pixels only hand the batch on to the model, whatever it is.
            batch = cast("Tensor", images)
            return self._adapt(batch) if adapt else self._predict(batch)

    def reset(self) -> None:
        """Go back to the state right after construction, bit for bit."""
        self._check_attached()
        self.skipped = 0
        self._streak = (-1, 0)
        with torch.inference_mode(False), torch.no_grad(), evaluating(self._modules):
            self._start()

    def detach(self) -> nn.Module:
        """Return the model, unchanged, and end this adapter."""
        self._detached = True
        return self.model

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the whole state, as tensors by name."""
        return {name: tensor.detach().clone() for name, tensor in self._state().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state of `state_dict`; one that does not fit raises an error and changes nothing.

        Raises:
            StateMismatchError: It belongs to another model or method.
            StateError: It holds values that make no sense, such as NaN or a negative count.
        """
        mine = self._state()
        for name in {**mine, **state}:
            if name not in state or name not in mine:
                problem = "lacks the" if name not in state else "has the unknown"
                raise StateMismatchError(f"this state of method {self.name!r} {problem} entry {name!r}")
            own, other = mine[name].shape, state[name].shape
            grown = len(own) == len(other) and (own[1:] == other[1:] or 0 in (*own[:1], *other[:1]))
            if own != other and not (grown and self._about_entry(name).grows):
                raise StateMismatchError(
                    f"entry {name!r} of this state has shape {tuple(other)}, {tuple(own)} was expected: it belongs to "
                    "another model, or it grows and was declared without grows=True"
                )
        self._check_values(state)
        before = self.state_dict()
        with torch.inference_mode(False), torch.no_grad():
            try:
                self._load(state)
            except Exception:
                self._load(before)
                raise

    def _state(self) -> dict[str, Tensor]:
        """The tensors that make up the state, by name; the adapter's own, not copies."""
        return tensors_of({name: getattr(self, name) for name in self._declared})

    def _load(self, state: Mapping[str, Tensor]) -> None:
        """Load a state that was checked."""
        for name, tensor in self._state().items():
            if tensor.shape == state[name].shape:
                tensor.copy_(state[name])
        for name in self._declared:
            part, inner = getattr(self, name), part_of(state, f"{name}/")
            if isinstance(part, Tensor):
                if part.shape != state[name].shape:  # it grows
                    setattr(self, name, state[name].to(part, copy=True))
            elif isinstance(part, torch.Generator):
                try:
                    part.set_state(state[name].cpu())
                except (RuntimeError, TypeError) as error:
                    raise StateMismatchError(f"entry {name!r} is not the state of a generator: {error}") from error
            elif isinstance(part, Adapter):
                part._load(inner)
            elif hasattr(part, "load"):
                part.load(inner)

    def _check_values(self, state: Mapping[str, Tensor]) -> None:
        """Raise StateError if values make no sense; entries and shapes were checked."""
        for name, tensor in self._state().items():
            if not self._about_entry(name).any_value:
                check_entry(name, state[name], tensor)
        for name in self._declared:
            if isinstance(part := getattr(self, name), Adapter):
                part._check_values(part_of(state, f"{name}/"))

    def _about_entry(self, name: str) -> Declared:
        """What was declared of an entry of the state."""
        first, _, rest = name.partition("/")
        part = getattr(self, first, None) if first in self._declared else None
        return part._about_entry(rest) if isinstance(part, Adapter) else self._declared.get(first, Declared())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as a safetensors file, atomically.

        Raises:
            StateError: The state holds numbers that `load` would reject. The old file stays.
        """
        state = self.state_dict()
        try:
            self._check_values(state)
        except StateError as error:
            raise StateError(f"{error}: nothing was saved; reset() begins again") from error
        write_state(path, state, self._about())

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Continue from a file of `save`; on an error the state does not change.

        Args:
            path: The file.
            strict: Raise an error if the state was saved with other head weights, or for other classes.
        """
        state, about = read_state(path)
        mine = self._about()
        if about.get("kind") != "adapter" or about.get("method") != self.name:
            raise StateMismatchError(
                f"{os.fspath(path)!r} holds the state of {about.get('method')!r}, this adapter is {self.name!r}"
            )
        for entry, what in (("head", "head weights"), ("classes", "classes")) if strict else ():
            if about.get(entry) != mine[entry]:
                raise StateMismatchError(f"{os.fspath(path)!r} was saved with other {what} (see strict=False)")
        self.load_state_dict(state)

    @property
    def num_classes(self) -> int:
        """Number of classes that are predicted."""
        return self.head.out_features if self.classes is None else len(self.classes)

    @property
    def forward_passes(self) -> int:
        """Largest number of forward passes for a batch, with these options."""
        return self.declaration.forward_passes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} on {type(self.model).__name__}: {self.options!r}>"

    # ---- for methods

    def add_state(self, name: str, start: Any, *, grows: bool = False, any_value: bool = False) -> None:
        """Declare a part of the state, and set the attribute of this name to what it starts with.

        From this follow `state_dict`, `save`, `load` and what they check; call it in `_start`.

        Args:
            name: The name of the attribute, and of its entry in a saved state.
            start: A tensor, which may be changed in place or replaced. Or what holds tensors that are changed in place:
                a dictionary of them, or an object with `state()`, and `load(state)` if these are copies; or a random
                generator, or another adapter.
            grows: Whether its first axis may have any length, as that of a queue or of a memory bank.
            any_value: Whether it may hold NaN, Inf or negative whole numbers.
        """
        setattr(self, name, start)
        self._declared = {**self._declared, name: Declared(grows, any_value)}

    def keep(self, logits: Tensor) -> Tensor:
        """The columns of the classes that are kept.

        Raises:
            InputError: These are not the logits of the head.
        """
        if logits.shape[-1] != self.head.out_features:
            raise InputError(
                f"{type(self.model).__name__} returns {tuple(logits.shape)} first, and its head has "
                f"{self.head.out_features} classes: of a tuple the first entry must be the logits"
            )
        return logits if self.classes is None else logits[:, self.classes.to(logits.device)]

    def classify(self, embeddings: Tensor) -> Tensor:
        """The logits of the model's own head, for the classes that are kept: (B, d) to (B, C)."""
        return self.keep(F.linear(embeddings, self.head.weight, self.head.bias))

    def finite_rows(self, rows: Tensor, adapt: bool = True) -> Tensor:
        """Which samples can be learnt from, as a mask (B,); those with NaN or Inf are counted and warned of.

        Args:
            rows: Logits, embeddings or entropies, one row for each sample, (B, ...).
            adapt: Whether to count and warn: without adapting, nothing is skipped.
        """
        finite = torch.isfinite(rows).flatten(1).all(dim=1)
        bad = len(finite) - int(finite.sum())
        if bad and adapt:
            self.skip(bad, f"{bad} of {len(finite)} embeddings hold NaN or Inf")
        return finite

    def usable(self, rows: Tensor) -> bool:
        """Whether a batch can be learnt from; one with NaN or Inf is counted, with a warning.

        Args:
            rows: Logits or features, one row for each sample, (B, n).
        """
        bad = int((~self.finite_rows(rows, adapt=False)).sum())
        if bad:
            self.skip(len(rows), f"{bad} of {len(rows)} samples give NaN or Inf")
        return not bad

    def watch(self, logits: Tensor) -> None:
        """Warn once after a long run of predictions of one class."""
        predicted = logits.argmax(dim=1)
        first = int(predicted[0])
        seen, length = self._streak
        if length < 0:  # warned already
            return
        if not bool((predicted == first).all()):
            self._streak = (-1, 0)
            return
        length = length + len(predicted) if seen == first else len(predicted)
        self._streak = (first, length)
        if length >= COLLAPSE and self.num_classes > 1:
            self._streak = (first, -1)
            warn(
                f"the last {length} predictions of {self.name} are all class {first}: it may have collapsed (or the "
                "stream holds one class only); reset() starts afresh"
            )

    def skip(self, count: int, what: str) -> None:
        """Count and warn of samples that are predicted but not adapted to."""
        self.skipped += count
        warn(f"{what}: predicted, but not adapted to")

    def _about(self) -> dict[str, Any]:
        options = {  # images are too large for the header of a file
            name: value
            for name, value in self.options.given().items()
            if not callable(value) and not isinstance(value, Tensor)
        }
        head = {"weight": self.head.weight, "bias": self.head.bias}
        return {
            "kind": "adapter",
            "method": self.name,
            "options": {name: str(value) for name, value in options.items()},
            "head": fingerprint({name: value for name, value in head.items() if value is not None}),
            "classes": None if self.classes is None else self.classes.tolist(),
        }

    def _may_adapt(self, adapt: bool) -> bool:
        if adapt and has_weights() and not self.declaration.row_weights:
            raise InputError(
                f"{self.name} cannot weight samples, as neo, neo-continual, neo-mse and neo-stream can: leave out the "
                "samples that must not count"
            )
        return adapt and not is_paused(self)

    def _check_inputs(self, images: Inputs) -> None:
        if self.declaration.pixels and not isinstance(images, Tensor):
            raise InputError(
                f"{self.name} changes images, so it takes a tensor (batch, channels, height, width), got "
                f"{type(images).__name__}"
            )
        if isinstance(images, Tensor) and (self.declaration.pixels or takes_images(self.model)):
            check_batch(images, "images", ("batch", "channels", "height", "width"), self.head.weight)
        else:
            check_tensors(images, self.head.weight)

    def _check_attached(self) -> None:
        if self._detached:
            raise NeottaError("this adapter is detached: make a new one with neotta.create")

    def _check_model(self) -> None:
        self._check_attached()
        try:
            what = "" if self.model.get_submodule(self.head_name) is layer_of(self.head) else "exchanged"
        except AttributeError:
            what = "removed"
        if what:
            raise ModelChangedError(
                f"the head {self.head_name!r} of the model was {what} after this adapter was made: make a new one"
            )


class EmbeddingAdapter(Adapter[O]):
    """A method that needs only embeddings, and so can run from a cache of them."""

    @abstractmethod
    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        """Predict a batch of embeddings, (B, d) with B > 0. Returns logits, (B, C)."""

    def _adapt(self, images: Tensor) -> Tensor:
        return self._embeddings(self.encode(images), adapt=True)

    def _predict(self, images: Tensor) -> Tensor:
        return self._embeddings(self.encode(images), adapt=False)

    def encode(self, images: Inputs) -> Tensor:
        """Embeddings of a batch that the model takes, (B, d)."""
        return self.encoder(images)  # type: ignore[no-any-return]

    def predict_embeddings(self, embeddings: Tensor, adapt: bool = True) -> Tensor:
        """Predict and adapt as a call with images does, from their embeddings, (B, d)."""
        self._check_model()
        check_batch(embeddings, "embeddings", ("batch", self.head.in_features), self.head.weight)
        adapt = self._may_adapt(adapt)
        if len(embeddings) == 0:
            return embeddings.new_empty(0, self.num_classes)
        with torch.inference_mode(False), torch.no_grad():
            return self._embeddings(embeddings, adapt)


def tensors_of(part: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of a part of a state, by name; see `Adapter.add_state`."""
    if isinstance(part, Tensor | torch.Generator):
        return {name: part.detach() if isinstance(part, Tensor) else part.get_state()}
    if not isinstance(part, Mapping):
        part = part._state() if isinstance(part, Adapter) else part.state()
    prefix = f"{name}/" if name else ""
    return {key: each for inner, value in part.items() for key, each in tensors_of(value, f"{prefix}{inner}").items()}
