"""Run an exported classifier with ONNX Runtime and NumPy, without torch.

Preprocessing pictures also needs Pillow; saving and loading a state needs safetensors.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neotta._extras import need
from neotta.deploy._card import Card, matches_checksum
from neotta.errors import (
    InputError,
    ModelLoadError,
    NotAdaptedError,
    OptionError,
    StateMismatchError,
)
from neotta.models.preprocess import Preprocess
from neotta.neo import fork_locks
from neotta.neo.statefile import Array, read_arrays, write_arrays

if TYPE_CHECKING:
    from PIL import Image

Images: TypeAlias = "Array | Sequence[Image.Image | Array]"

_ENTRIES = ("mean", "count", "batches", "rejected", "scatter")  # of a centroid, as in torch


class OnnxClassifier:
    """A classifier in an ONNX file written by `neotta.deploy.export`, folded or adaptive.

    For an adaptive file, this object holds the state, which starts from that of the exported model. It is saved in the
    format of `neotta.save`, so it can be exchanged with torch in both directions. The mean is float32.

    Threads can share a classifier. Calls that adapt run one after another, the others in parallel.

    Args:
        path: The file.
        providers: Execution providers, for example `["CUDAExecutionProvider", "CPUExecutionProvider"]`.
        threads: Number of threads per call; chosen by ONNX Runtime by default.

    Attributes:
        form: "folded" or "adaptive".
        name: Name of the classifier.
        labels: Names of the classes, if known.
        preprocess: The preprocessing, if known.
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
        content = _content(Path(path))
        whole = matches_checksum(content)
        if whole is False:
            raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its content does not match its checksum")
        self._session = _session(content, str(path), providers, threads)
        try:
            card = Card.read(self._session.get_modelmeta().custom_metadata_map)
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its metadata is not text") from error
        if card is None:
            raise ModelLoadError(
                f"{os.fspath(path)!r} was not written by this version of neotta.deploy.export: for other ONNX "
                "files, re-center the logits with neotta.deploy.LogitRecenter.from_onnx"
            )
        if whole is None:
            raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its checksum is missing")
        self._card = card
        self.form = card.form
        self.name = card.name
        self.labels = None if card.labels is None else tuple(card.labels)
        self.preprocess = None if card.preprocess is None else Preprocess.from_dict(card.preprocess)
        self.adapting = card.form == "adaptive"
        self._lock = fork_locks.register(self, wait=False)
        self._shape = self._session.get_inputs()[0].shape
        self._carried = [port.name for port in self._session.get_inputs()[1:]]
        self._outputs = [port.name for port in self._session.get_outputs()]
        self._state = {name: _typed(entries) for name, entries in card.state.items()}

    # ---- predicting

    def predict(self, images: Images, adapt: bool = True) -> Array:
        """Predict a batch, and adapt to it unless the file is folded or the classifier frozen.

        Args:
            images: Images of any size, as a list of Pillow images or uint8 arrays (H, W, 3), or as one uint8 array
                (B, H, W, 3); or a preprocessed batch, a floating point array (or tensor), (B, 3, H, W).
            adapt: Whether to adapt; if not, the state does not change.

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
                f"{rejected} of {len(batch)} embeddings contain NaN or Inf: predicted, but excluded from the centroid",
                RuntimeWarning,
                stacklevel=2,
            )
        return outputs["logits"]

    def classify(self, images: Images, adapt: bool = True) -> list[str]:
        """Same as `predict`, but return the name of the most likely class of each image (its index without labels)."""
        best = self.predict(images, adapt).argmax(axis=1).tolist()
        return [str(index) if self.labels is None else self.labels[index] for index in best]

    def _run(self, batch: Array, adapt: bool) -> dict[str, Array]:
        state = {self._card.port(head, name): value for head, e in self._state.items() for name, value in e.items()}
        feed = {name: state[name] for name in self._carried}
        outputs = self._session.run(self._outputs, {"images": batch, "adapt": np.array(adapt), **feed})
        return dict(zip(self._outputs, outputs, strict=True))

    def _take(self, outputs: Mapping[str, Array]) -> None:
        """Replace the state by the one that a call returned, atomically."""
        after = {}
        for head, before in self._state.items():
            new = {name: outputs.get(f"next_{self._card.port(head, name)}", value) for name, value in before.items()}
            new["rejected"] = before["rejected"] + outputs[self._card.port(head, "rejected")]
            if "next_" + self._card.port(head, "batches") not in outputs:
                new["batches"] = before["batches"] + (new["count"] > before["count"])
            after[head] = new
        self._state = after

    def _ready(self, images: Images) -> Array:
        """Convert images to the input of the graph, (B, 3, H, W) float32."""
        if hasattr(images, "detach"):  # a torch tensor
            images = images.detach().cpu().numpy()
        if isinstance(images, np.ndarray) and np.issubdtype(images.dtype, np.floating):
            wanted = tuple(self._shape[1:])
            if images.ndim != 4 or images.shape[1:] != wanted:
                raise InputError(f"expected preprocessed images of shape (batch, {wanted}), got {images.shape}")
            return np.ascontiguousarray(images, np.float32)
        if isinstance(images, np.ndarray) and images.ndim != 4:
            raise InputError(f"expected a list or an array (batch, height, width, 3), got shape {images.shape}")
        if not isinstance(images, (np.ndarray, Iterable)):
            raise InputError(
                f"expected a list or array of images, got {type(images).__name__}: put one image into a list"
            )
        if self.preprocess is None:
            raise InputError("this file contains no preprocessing: pass preprocessed images, or export it "
                             "with preprocess=")  # fmt: skip
        ready = [self.preprocess.array(image) for image in images]
        return np.stack(ready) if ready else np.empty((0, *self._shape[1:]), np.float32)

    # ---- the state

    @property
    def count(self) -> int:
        """Number of samples seen; for a folded file, by the centroid that was folded in."""
        return max((int(entries["count"]) for entries in self._state.values()), default=self._card.samples)

    def freeze(self) -> None:
        """Stop adapting; the state stays as it is."""
        self._need_adaptive()
        self.adapting = False

    def unfreeze(self) -> None:
        """Resume adapting."""
        self._need_adaptive()
        self.adapting = True

    def reset(self) -> None:
        """Forget everything, including the state of the exported model."""
        self._need_adaptive()
        with self._lock:
            zeros = {name: {key: np.zeros_like(v) for key, v in e.items()} for name, e in self._state.items()}
            self._state = zeros

    def state(self) -> dict[str, Array]:
        """Return a copy of the state, with the names of a saved file."""
        self._need_adaptive()
        return {f"{head}.{name}": np.array(v) for head, entries in self._state.items() for name, v in entries.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as `neotta.save` does, so that `neotta.load` can load it in torch."""
        about = {
            "kind": "model",
            "method": self._card.method,
            "options": self._card.options,
            "heads": self._card.heads,
        }
        write_arrays(path, self.state(), about)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Load a file written by `save` or `neotta.save`; on error, the state does not change.

        Args:
            path: The file.
            strict: Raise an error if the head weights differ.

        Raises:
            StateFileError: The file is missing or damaged.
            StateMismatchError: The state belongs to another model or method.
        """
        arrays, about = read_arrays(path)
        mine = self.state()
        shapes = {name: array.shape for name, array in arrays.items()}
        kind = (self._card.method, self._card.options)
        if about.get("kind") != "model" or (about.get("method"), about.get("options")) != kind:
            raise StateMismatchError(
                f"{os.fspath(path)!r} contains the state of {about.get('method')!r} ({about.get('options')}), "
                f"this classifier is {kind[0]!r} ({kind[1]})"
            )
        if about.get("streams"):
            raise StateMismatchError(
                f"{os.fspath(path)!r} contains many streams: save one of them with neotta.save(model, path, stream=...)"
            )
        if shapes != {name: array.shape for name, array in mine.items()}:
            raise StateMismatchError(f"{os.fspath(path)!r} belongs to another model: it contains {shapes}")
        if strict and about.get("heads") != self._card.heads:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with other head weights (see strict=False)")
        with self._lock:
            self._state = {
                head: _typed({name: arrays[f"{head}.{name}"] for name in entries})
                for head, entries in self._state.items()
            }

    def _need_adaptive(self) -> None:
        if self.form != "adaptive":
            raise NotAdaptedError(f"{self.name} is folded and has no state: export it with form='adaptive'")

    def __repr__(self) -> str:
        return f"<OnnxClassifier {self.name!r}, {self.form}, count={self.count}>"


def _typed(entries: Mapping[str, Any]) -> dict[str, Array]:
    """Convert the entries of a centroid to the dtypes of the graph."""
    real = ("mean", "scatter")
    return {name: np.array(entries[name], np.float32 if name in real else np.int64) for name in _ENTRIES}


def _content(path: Path) -> bytes:
    """Read the file once: what is checked is what is run."""
    need("onnxruntime", "running an ONNX file")
    if not path.is_file():
        raise ModelLoadError(f"there is no file {str(path)!r}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def _session(content: bytes, name: str, providers: Sequence[str] | None, threads: int | None) -> Any:
    onnxruntime = need("onnxruntime", "running an ONNX file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # only errors: a warning about the default of `adapt` is expected
    if threads is not None:
        if not isinstance(threads, int) or threads < 1:
            raise OptionError(f"threads is {threads!r}: expected an integer, at least 1")
        options.intra_op_num_threads = threads
    available = onnxruntime.get_available_providers()
    missing = [provider for provider in providers or () if provider not in available]
    if missing:
        raise OptionError(f"ONNX Runtime has no provider {missing[0]!r}: available are {', '.join(available)}")
    try:
        return onnxruntime.InferenceSession(content, options, providers=list(providers or ["CPUExecutionProvider"]))
    except Exception as error:  # the errors of onnxruntime share no base class
        raise ModelLoadError(f"{name!r} cannot be run by ONNX Runtime: {error}") from error
