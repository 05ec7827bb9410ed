"""Where clean data lies, and the file that holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from neotta.errors import OptionError, StateMismatchError
from neotta.neo.statefile import Array, fingerprint, read_arrays, write_state

if TYPE_CHECKING:  # a state with a reference can be read without torch
    from torch import Tensor

PREFIX = "reference/"  # before the names of its arrays in the state of a model


class HeadReference:
    """Where clean data lies, as one head sees it."""

    def __init__(
        self, samples: float, embedding: Array, origin: Array, prior: Array, peak: float | Array, free: Array
    ) -> None:
        self.samples = int(samples)  # number of clean samples
        self.embedding = embedding  # mean of the embeddings, (d,): rules on embeddings re-center towards it
        self.origin = origin  # mean of the centred logits, (C,): rules on logits re-center towards it
        self.prior = prior  # how often each class is predicted, (C,), positive; the sum is 1
        self.peak = float(peak)  # expected logit of the predicted class
        self.free = free  # mean of the centred logits, without the bias, (C,)
        self._moved: dict[Any, tuple[Tensor, Tensor]] = {}

    def arrays(self) -> dict[str, Array]:
        """All numbers by name."""
        return {name: np.asarray(value) for name, value in vars(self).items() if name != "_moved"}

    def on(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The prior and the free mean, (C,) each, as tensors like `like`."""
        place = (like.device, like.dtype)
        if place not in self._moved:
            self._moved[place] = (like.new_tensor(self.prior.tolist()), like.new_tensor(self.free.tolist()))
        return self._moved[place]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_moved": {}}


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
        write_state(path, self.arrays(), self.about())

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
                heads[name] = HeadReference(**mine)  # type: ignore[arg-type]
                _check(heads[name])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateMismatchError(f"this reference is incomplete or damaged: {error}") from error
        return cls(heads, about["heads"])

    @property
    def digest(self) -> str:
        """A hash of everything measured."""
        return fingerprint(self.arrays())

    def check_fingerprints(self, fingerprints: Mapping[str, str]) -> None:
        """Check that this was measured with the same heads, given a hash of the weights of each.

        Raises:
            StateMismatchError: It belongs to another model.
        """
        if set(fingerprints) != set(self.heads):
            raise StateMismatchError(
                f"the reference was measured at the head {', '.join(self.heads)}, the model's head is "
                f"{', '.join(fingerprints)}: measure it again with neotta.reference(model, images)"
            )
        for name, mine in fingerprints.items():
            if mine != self.fingerprints[name]:
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


def as_reference(given: Reference | str | os.PathLike[str]) -> Reference:
    """A reference, or the one in a file."""
    if isinstance(given, Reference):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Reference.load(given)
    raise OptionError(
        f"reference is a {type(given).__name__}: expected the result of neotta.reference(model, images), or a file"
    )


def for_logits(
    given: Reference | str | os.PathLike[str], classes: int, bias: Array | None = None, weight: Array | None = None
) -> HeadReference:
    """The part of a reference for logits of C classes, checked against the bias, (C,), and weight, (C, d), if known."""
    known = as_reference(given)
    if len(known.heads) != 1:
        raise StateMismatchError(
            f"the reference has the heads {', '.join(known.heads)}: expected one, that of the logits"
        )
    (head,) = known.heads.values()
    again = "measure it again with neotta.reference(model, images)"
    if len(head.origin) != classes:
        raise StateMismatchError(
            f"the reference belongs to another head: it has {len(head.origin)} classes, the logits {classes}; {again}"
        )
    if bias is not None and not _equal(head.origin - head.free, bias):
        raise StateMismatchError(f"the reference belongs to another head: its bias differs; {again}")
    if weight is not None and (
        weight.shape[1] != len(head.embedding) or not _equal(weight @ head.embedding, head.free)
    ):
        raise StateMismatchError(f"the reference belongs to another head: its weight differs; {again}")
    return head


def _equal(one: Array, other: Array) -> bool:
    """Whether two vectors over classes are the same up to a constant and the rounding of a runtime."""
    one, other = (np.asarray(vector, np.float64) - np.mean(vector) for vector in (one, other))
    return bool(abs(one - other).max() <= 1e-3 * max(abs(one).max(), abs(other).max(), 1e-3))


def _check(head: HeadReference) -> None:
    classes = len(head.origin)
    by_class = dict.fromkeys(("prior", "origin", "free"), (classes,))
    shapes: dict[str, tuple[int, ...]] = {**by_class, "peak": (), "samples": ()}
    for name, array in head.arrays().items():
        if name in shapes and array.shape != shapes[name]:
            raise ValueError(f"{name!r} has shape {array.shape}, expected {shapes[name]}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name!r} holds NaN or Inf")
    if head.samples < 2 or (head.prior <= 0).any() or not head.peak > 0:
        raise ValueError("counts, shares and the peak must be positive")
