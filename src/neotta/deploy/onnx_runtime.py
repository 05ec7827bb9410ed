"""Run an exported classifier with ONNX Runtime and NumPy alone: neither torch nor timm is needed.

Pictures that have to be prepared need Pillow as well, and saving and loading a state needs safetensors.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neotta._extras import need
from neotta.deploy._card import Card
from neotta.errors import (
    InputError,
    ModelLoadError,
    NotAdaptedError,
    OptionError,
    StateMismatchError,
)
from neotta.models.preprocess import Preprocess
from neotta.neo.statefile import Array, read_arrays, write_arrays

if TYPE_CHECKING:
    from PIL import Image

Images: TypeAlias = "Array | Sequence[Image.Image | Array]"

_ENTRIES = ("mean", "count", "batches", "rejected", "scatter")  # of a centroid, as torch keeps it


class OnnxClassifier:
    """A classifier in an ONNX file of `neotta.deploy.export`, folded or adaptive.

    An adaptive file goes on adapting here: the state is kept by this object, starts where the exported model was,
    and is saved in the format of `neotta.save`, so that it can travel between torch and ONNX Runtime in both
    directions. The mean is kept in float32, as the graph computes it.

    Threads may share a classifier. While it adapts they take turns; folded or frozen they run at the same time.

    Args:
        path: The file.
        providers: Where ONNX Runtime computes, such as `["CUDAExecutionProvider", "CPUExecutionProvider"]`.
        threads: How many threads ONNX Runtime uses for one call; its own choice if not given.

    Attributes:
        form: "folded" or "adaptive".
        name: Name of the classifier.
        labels: Name of each class, if they are known.
        preprocess: What makes its input from images, if it is known.
        adapting: Whether `predict` adapts; see `freeze`.

    Raises:
        ModelLoadError: The file is missing, damaged, or was not written by `neotta.deploy.export`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        providers: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> None:
        self._session = _session(Path(path), providers, threads)
        card = Card.read(self._session.get_modelmeta().custom_metadata_map)
        if card is None:
            raise ModelLoadError(
                f"{os.fspath(path)!r} was not written by neotta.deploy.export (of this version): for other ONNX "
                "files, re-center their logits with neotta.deploy.LogitRecenter.from_onnx"
            )
        self._card = card
        self.form = card.form
        self.name = card.name
        self.labels = None if card.labels is None else tuple(card.labels)
        self.preprocess = None if card.preprocess is None else Preprocess.from_dict(card.preprocess)
        self.adapting = card.form == "adaptive"
        self._lock = threading.Lock()
        self._shape = self._session.get_inputs()[0].shape
        self._carried = [port.name for port in self._session.get_inputs()[1:]]
        self._outputs = [port.name for port in self._session.get_outputs()]
        self._state = {name: _typed(entries) for name, entries in card.state.items()}

    # ---- predicting

    def predict(self, images: Images, adapt: bool = True) -> Array:
        """Predict a batch, and adapt to it unless the file is folded, the classifier frozen, or told not to.

        Args:
            images: Images of any size, as a list of Pillow images or uint8 arrays (H, W, 3), or as one uint8 array
                (B, H, W, 3); or a batch that is preprocessed already, an array (or tensor) of floating point numbers,
                (B, 3, H, W).
            adapt: Whether the state may change.

        Returns:
            Logits, (B, C) float32.
        """
        batch = self._ready(images)
        if len(batch) == 0:
            return np.empty((0, *self._session.get_outputs()[0].shape[1:]), np.float32)
        if self.form == "folded":
            logits: Array = self._session.run(["logits"], {"images": batch})[0]
            return logits
        if not (adapt and self.adapting):
            return self._run(batch, adapt=False)["logits"]
        with self._lock:
            outputs = self._run(batch, adapt=True)
            self._take(outputs)
        rejected = sum(int(outputs[self._card.port(head, "rejected")]) for head in self._state)
        if rejected:
            warnings.warn(
                f"{rejected} of {len(batch)} embeddings hold NaN or Inf: predicted, but kept out of the centroid",
                RuntimeWarning,
                stacklevel=2,
            )
        return outputs["logits"]

    def classify(self, images: Images, adapt: bool = True) -> list[str]:
        """As `predict`, but the name of the likeliest class of each image (its number, if no labels are known)."""
        best = self.predict(images, adapt).argmax(axis=1).tolist()
        return [str(index) if self.labels is None else self.labels[index] for index in best]

    def _run(self, batch: Array, adapt: bool) -> dict[str, Array]:
        state = {self._card.port(head, name): value for head, e in self._state.items() for name, value in e.items()}
        feed = {name: state[name] for name in self._carried}
        outputs = self._session.run(self._outputs, {"images": batch, "adapt": np.array(adapt), **feed})
        return dict(zip(self._outputs, outputs, strict=True))

    def _take(self, outputs: Mapping[str, Array]) -> None:
        """Put the state after a call in the place of the state before, all at once."""
        after = {}
        for head, before in self._state.items():
            new = {name: outputs.get(f"next_{self._card.port(head, name)}", value) for name, value in before.items()}
            new["rejected"] = before["rejected"] + outputs[self._card.port(head, "rejected")]
            if "next_" + self._card.port(head, "batches") not in outputs:
                new["batches"] = before["batches"] + (new["count"] > before["count"])
            after[head] = new
        self._state = after

    def _ready(self, images: Images) -> Array:
        """Make the input of the graph, (B, 3, H, W) float32."""
        if hasattr(images, "detach"):  # a tensor of torch
            images = images.detach().cpu().numpy()
        if isinstance(images, np.ndarray) and np.issubdtype(images.dtype, np.floating):
            wanted = tuple(self._shape[1:])
            if images.ndim != 4 or images.shape[1:] != wanted:
                raise InputError(f"preprocessed images here are (batch, {wanted}), got an array of {images.shape}")
            return np.ascontiguousarray(images, np.float32)
        if isinstance(images, np.ndarray) and images.ndim != 4:
            raise InputError(f"images are a list or an array of (batch, height, width, 3), got one of {images.shape}")
        if not isinstance(images, (np.ndarray, Iterable)):
            raise InputError(f"images are a list or an array, got {type(images).__name__}: put one image into a list")
        if self.preprocess is None:
            raise InputError("this file does not say how images are prepared: give preprocessed ones, or export it "
                             "with preprocess=")  # fmt: skip
        ready = [self.preprocess.array(image) for image in images]
        return np.stack(ready) if ready else np.empty((0, *self._shape[1:]), np.float32)

    # ---- the state

    @property
    def count(self) -> int:
        """How many samples stand behind the centroid; in a folded file, behind the one that was folded in."""
        return max((int(entries["count"]) for entries in self._state.values()), default=self._card.samples)

    def freeze(self) -> None:
        """Keep the state as it is: predict without adapting."""
        self._need_adaptive()
        self.adapting = False

    def unfreeze(self) -> None:
        """Adapt again."""
        self._need_adaptive()
        self.adapting = True

    def reset(self) -> None:
        """Forget everything, also what the exported model had seen."""
        self._need_adaptive()
        with self._lock:
            zeros = {name: {key: np.zeros_like(v) for key, v in e.items()} for name, e in self._state.items()}
            self._state = zeros

    def state(self) -> dict[str, Array]:
        """A copy of the state: the centroid's entries, named as in a file of `save`."""
        self._need_adaptive()
        return {f"{head}.{name}": np.array(v) for head, entries in self._state.items() for name, v in entries.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state alone, as `neotta.save` does: `neotta.load` gives it to the model in torch."""
        about = {
            "kind": "model",
            "method": self._card.method,
            "options": self._card.options,
            "heads": self._card.heads,
        }
        write_arrays(path, self.state(), about)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Go on from a file of `save` or `neotta.save`; if anything is wrong, the state stays as it is.

        Args:
            path: The file.
            strict: Refuse a state that was saved with other head weights.

        Raises:
            StateFileError: The file is missing or damaged.
            StateMismatchError: It belongs to another model or method.
        """
        arrays, about = read_arrays(path)
        mine = self.state()
        shapes = {name: array.shape for name, array in arrays.items()}
        kind = (self._card.method, self._card.options)
        if about.get("kind") != "model" or (about.get("method"), about.get("options")) != kind:
            raise StateMismatchError(
                f"{os.fspath(path)!r} holds the state of {about.get('method')!r} ({about.get('options')}), "
                f"this classifier is {kind[0]!r} ({kind[1]})"
            )
        if about.get("streams"):
            raise StateMismatchError(
                f"{os.fspath(path)!r} holds many streams: save one alone, neotta.save(model, path, stream=...)"
            )
        if shapes != {name: array.shape for name, array in mine.items()}:
            raise StateMismatchError(f"{os.fspath(path)!r} belongs to another model: it holds {shapes}")
        if strict and about.get("heads") != self._card.heads:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with other head weights (see strict=False)")
        with self._lock:
            self._state = {
                head: _typed({name: arrays[f"{head}.{name}"] for name in entries})
                for head, entries in self._state.items()
            }

    def _need_adaptive(self) -> None:
        if self.form != "adaptive":
            raise NotAdaptedError(f"{self.name} is folded, it has no state: export it with form='adaptive'")

    def __repr__(self) -> str:
        return f"<OnnxClassifier {self.name!r}, {self.form}, count={self.count}>"


def _typed(entries: Mapping[str, Any]) -> dict[str, Array]:
    """The entries of a centroid in the types that the graph takes."""
    real = ("mean", "scatter")
    return {name: np.array(entries[name], np.float32 if name in real else np.int64) for name in _ENTRIES}


def _session(path: Path, providers: Sequence[str] | None, threads: int | None) -> Any:
    onnxruntime = need("onnxruntime", "running an ONNX file")
    if not path.is_file():
        raise ModelLoadError(f"there is no file {str(path)!r}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: that `adapt` has a default is meant
    if threads is not None:
        if not isinstance(threads, int) or threads < 1:
            raise OptionError(f"threads takes a whole number, at least 1, got {threads!r}")
        options.intra_op_num_threads = threads
    available = onnxruntime.get_available_providers()
    missing = [provider for provider in providers or () if provider not in available]
    if missing:
        raise OptionError(f"ONNX Runtime has no {missing[0]!r} here: it has {', '.join(available)}")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=list(providers or ["CPUExecutionProvider"]))
    except Exception as error:  # onnxruntime's errors share no base class
        raise ModelLoadError(f"{str(path)!r} cannot be run by ONNX Runtime: {error}") from error
