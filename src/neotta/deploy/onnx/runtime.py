"""Run an exported classifier with ONNX Runtime and NumPy, without torch.

Preprocessing pictures also needs Pillow; an adaptive file, whose state it reads, needs safetensors.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neotta._extras import need
from neotta.deploy.onnx.card import Card, matches_checksum
from neotta.deploy.onnx.state import OnnxState
from neotta.errors import InputError, ModelLoadError, NotAdaptedError, OptionError
from neotta.models.preprocess import Preprocess
from neotta.neo.codec import StateFile
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId, checked, checked_weights, for_rows

if TYPE_CHECKING:
    from PIL import Image


class OnnxClassifier:
    """A classifier in an ONNX file written by `neotta.deploy.export`, folded or adaptive.

    For an adaptive file, this object holds the state, which starts from that of the exported model: one, or one per
    stream. It is saved in the format of `neotta.save`, so it can be exchanged with torch in both directions.

    The rule runs in the graph, in float32, once for each stream of a batch. (For hundreds of cameras per batch, run a
    plain file once and re-center its logits with `LogitRecenter`, which needs torch; or use `neotta serve`.)

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
        self._session, card = opened(path, providers, threads)
        self._card = card
        self.form = card.form
        self.name = card.name
        self.labels = None if card.labels is None else tuple(card.labels)
        self.preprocess = None if card.preprocess is None else Preprocess.from_dict(card.preprocess)
        self.adapting = card.form == "adaptive"
        self._lock = threading.RLock()
        self._memory = OnnxState(self._session, card) if card.form == "adaptive" else None

    # ---- predicting

    def predict(
        self,
        images: Images,
        adapt: bool = True,
        *,
        stream: StreamId | Iterable[StreamId] | None = None,
        weights: Iterable[float] | Array | None = None,
    ) -> Array:
        """Predict a batch, and adapt to it unless the file is folded or the classifier frozen.

        Args:
            images: Images of any size, as a list of Pillow images or uint8 arrays (H, W, 3), or as one uint8 array
                (B, H, W, 3); or a preprocessed batch, a floating point array (or tensor), (B, 3, H, W).
            adapt: Whether to adapt; if not, the state does not change.
            stream: Whose images these are: one id (a string or an integer), or one per image. Each stream has a state
                of its own, which starts from that of the exported model.
            weights: 1 for images to learn from, 0 for those that are only predicted, after the others, (B,).

        Returns:
            Logits, (B, C) float32.
        """
        batch = prepared(images, tuple(self._session.get_inputs()[0].shape[1:]), self.preprocess)
        ids = (None,) * len(batch) if stream is None else for_rows(checked(stream), len(batch))
        learn = _learnt(weights, len(batch)) & (adapt and self.adapting)
        if len(batch) == 0:
            return np.empty((0, *self._session.get_outputs()[0].shape[1:]), np.float32)
        if self._memory is None:
            if stream is not None or weights is not None:
                self._adaptive()
            logits: Array = self._session.run(["logits"], {"images": batch})[0]
            return logits
        if not learn.any():
            return self._memory.step(batch, ids, learn)[0]
        with self._lock:
            answer, rejected = self._memory.step(batch, ids, learn)
        if rejected:
            warnings.warn(
                f"{rejected} of {len(batch)} images give NaN, Inf or too large numbers: predicted, but not learnt from",
                RuntimeWarning,
                stacklevel=2,
            )
        return answer

    def classify(
        self,
        images: Images,
        adapt: bool = True,
        *,
        stream: StreamId | Iterable[StreamId] | None = None,
        weights: Iterable[float] | Array | None = None,
    ) -> list[str]:
        """Same as `predict`, but return the name of the most likely class of each image (its index without labels)."""
        best = self.predict(images, adapt, stream=stream, weights=weights).argmax(axis=1).tolist()
        return [str(index) if self.labels is None else self.labels[index] for index in best]

    def plain(self, images: Images) -> Array:
        """Predict a batch without re-centering it: the logits of the model that was exported; see `predict`.

        Raises:
            NotAdaptedError: The file is folded, so that its bias is not that of the model.
        """
        memory = self._adaptive()
        batch = prepared(images, tuple(self._session.get_inputs()[0].shape[1:]), self.preprocess)
        return memory.plain(batch) if len(batch) else self.predict(batch)

    # ---- the state

    @property
    def bias(self) -> Array | None:
        """Bias of the head, (C,), of an adaptive file whose rule acts on logits."""
        return None if self._card.bias is None else np.array(self._card.bias)

    @property
    def states(self) -> StateFile:
        """What the states of an adaptive file belong to, and the one that it starts with."""
        return self._card.states()

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams; for a folded file, by the model that was folded."""
        if self._memory is None:
            return self._card.samples
        ids: list[StreamId | None] = [*self._memory.ids]
        return sum(self._memory.count(stream) for stream in ids or [None])

    def streams(self) -> dict[StreamId, int]:
        """Number of samples of each stream."""
        memory = self._memory
        return {} if memory is None else {stream: memory.count(stream) for stream in memory.ids}

    def freeze(self) -> None:
        """Stop adapting; the state stays as it is."""
        self._adaptive()
        self.adapting = False

    def unfreeze(self) -> None:
        """Resume adapting."""
        self._adaptive()
        self.adapting = True

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream; or everything, including the state of the exported model."""
        memory = self._adaptive()
        with self._lock:
            memory.reset(stream)

    def state(self, stream: StreamId | None = None) -> dict[str, Array]:
        """Return a copy of the state, or of a stream's, or of all streams, with the names of a saved file."""
        file = self._adaptive().file(stream)
        return {f"{name}.{key}": each for name, head in file.heads.items() for key, each in head.arrays().items()}

    def save(self, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
        """Save the state as `neotta.save` does, so that `neotta.load` can load it in torch.

        Args:
            path: The file.
            stream: Save only this stream; by default, all of them if there are any.
        """
        self._adaptive().file(stream).save(path)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True, stream: StreamId | None = None) -> None:
        """Load a file written by `save` or `neotta.save`, of one stream or many; on error, the state does not change.

        Args:
            path: The file.
            strict: Raise an error if the head weights differ.
            stream: Load the state of one stream into this one.

        Raises:
            StateFileError: The file is missing or damaged.
            StateMismatchError: The state belongs to another model, method or reference.
            StateError: The state contains invalid values, such as NaN or a negative count.
        """
        memory = self._adaptive()
        states = memory.read(path, strict, stream)
        with self._lock:
            memory.put(states, stream)

    def _adaptive(self) -> OnnxState:
        if self._memory is None:
            raise NotAdaptedError(f"{self.name} is folded and has no state: export it with form='adaptive'")
        return self._memory

    def __repr__(self) -> str:
        return f"<OnnxClassifier {self.name!r}, {self.form}, count={self.count}>"


def _learnt(weights: Iterable[float] | Array | None, images: int) -> Array:
    if weights is None:
        return np.ones(images, bool)
    numbers = checked_weights(weights, images)
    if not np.isin(numbers, (0.0, 1.0)).all():
        raise InputError("an ONNX file takes weights of 0 or 1: re-center the logits of a plain file for others")
    return numbers > 0


def opened(path: str | os.PathLike[str], providers: Sequence[str] | None, threads: int | None) -> tuple[Any, Card]:
    """The session of a file, and its description."""
    need("onnxruntime", "running an ONNX file")
    if not Path(path).is_file():
        raise ModelLoadError(f"there is no file {str(path)!r}")
    try:
        content = Path(path).read_bytes()  # once: what is checked is what is run
    except OSError as error:
        raise ModelLoadError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    whole = matches_checksum(content)
    if whole is False:
        raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its content does not match its checksum")
    session = _session(content, str(path), providers, threads)
    try:
        card = Card.read(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its metadata is not text") from error
    if card is None:
        raise ModelLoadError(
            f"{os.fspath(path)!r} was not written by this version of neotta.deploy.export: for other ONNX "
            "files, re-center the logits with neotta.deploy.LogitRecenter.from_onnx"
        )
    if whole is None:
        raise ModelLoadError(f"{os.fspath(path)!r} is damaged: its checksum is missing")
    return session, card


def _session(content: bytes, name: str, providers: Sequence[str] | None, threads: int | None) -> Any:
    onnxruntime = need("onnxruntime", "running an ONNX file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # only errors: a warning about the default of `adapt` is expected
    # No tensors from other files, which the checksum does not cover: there are none below this "folder".
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
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


Images: TypeAlias = "Array | Sequence[Image.Image | Array]"


def prepared(images: Images, wanted: tuple[Any, ...], preprocess: Preprocess | None) -> Array:
    """Convert images, as `OnnxClassifier.predict` takes them, to (B, 3, H, W) float32; `wanted` is (3, H, W)."""
    if hasattr(images, "detach"):  # a torch tensor
        images = images.detach().cpu().numpy()
    if isinstance(images, np.ndarray) and np.issubdtype(images.dtype, np.floating):
        if images.ndim != 4 or images.shape[1:] != wanted:
            raise InputError(f"expected preprocessed images of shape (batch, {wanted}), got {images.shape}")
        return np.ascontiguousarray(images, np.float32)
    if isinstance(images, np.ndarray) and images.ndim != 4:
        raise InputError(f"expected a list or an array (batch, height, width, 3), got shape {images.shape}")
    if not isinstance(images, (np.ndarray, Iterable)):
        raise InputError(f"expected a list or array of images, got {type(images).__name__}: put one image into a list")
    if preprocess is None:
        raise InputError("this file contains no preprocessing: pass preprocessed images, or export it "
                         "with preprocess=")  # fmt: skip
    ready = [preprocess.array(image) for image in images]
    return np.stack(ready) if ready else np.empty((0, *wanted), np.float32)
