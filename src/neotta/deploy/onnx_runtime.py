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
from neotta.deploy._graph_memory import GraphMemory, rule_of_card
from neotta.deploy._logit_memory import LogitMemory
from neotta.deploy._stream_states import StreamStates, ids_of, weights_of
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
from neotta.neo.stream_ids import StreamId, one

if TYPE_CHECKING:
    from PIL import Image

_DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
Images: TypeAlias = "Array | Sequence[Image.Image | Array]"


class OnnxClassifier:
    """A classifier in an ONNX file written by `neotta.deploy.export`, folded or adaptive.

    For an adaptive file, this object holds the state, which starts from that of the exported model: one, or one per
    stream. It is saved in the format of `neotta.save`, so it can be exchanged with torch in both directions.

    With neo-stream the graph computes the logits, once per batch, and the rule runs in NumPy and float64. (If the
    head's logits are not the output of the model, as with two heads, the rule runs in the graph.) The other rules need
    embeddings: they run in the graph, in float32, once for each stream of a batch.

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
        self._in_graph = GraphMemory(card, self._run, [name for name in self._carried if name != "adapt"])
        self._on_logits = None if card.bias is None else _logit_memory(card)

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
            weights: How much each image counts, (B,), at least 0. Images of weight 0 are predicted but not learnt from.
                A file with neo-stream takes any weights, one with another rule those of 0 or 1.

        Returns:
            Logits, (B, C) float32.
        """
        batch = self._ready(images)
        ids, checked = ids_of(stream, len(batch)), weights_of(weights, len(batch))
        if len(batch) == 0:
            return np.empty((0, *self._session.get_outputs()[0].shape[1:]), np.float32)
        if self.form == "folded":
            if stream is not None or weights is not None:
                self._need_adaptive()
            logits: Array = self._session.run(["logits"], {"images": batch})[0]
            return logits
        if not (adapt and self.adapting):
            return self._step(batch, ids, False, checked)[0]
        with self._lock:
            answer, rejected = self._step(batch, ids, True, checked)
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

    def _step(
        self, batch: Array, ids: Sequence[StreamId | None], adapt: bool, weights: Array | None
    ) -> tuple[Array, int]:
        """Logits of a batch, and the number of images excluded."""
        if self._on_logits is None:
            return self._in_graph.predict(batch, ids, adapt=adapt, weights=weights)
        empty = {port.name: np.zeros(port.shape, _DTYPES[port.type]) for port in self._session.get_inputs()[1:]}
        logits = self._run({"images": batch, "adapt": np.array(False), **empty})["logits"]  # those of the plain model
        subtract, rejected = self._on_logits.step(logits, ids, adapt=adapt, weights=weights)
        return (logits - subtract).astype(np.float32), rejected

    def _run(self, feed: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))

    def run_in_graph(self) -> None:
        """Run the rule inside the graph, in float32, as other runtimes do; each stream of a batch is then a call."""
        self._on_logits = None

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
    def bias(self) -> Array | None:
        """Bias of the head, (C,), of an adaptive file whose rule acts on logits."""
        return None if self._card.bias is None else np.array(self._card.bias)

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams; for a folded file, by the centroid that was folded in."""
        if self.form == "folded":
            return self._card.samples
        ids = self._states.ids
        return sum(map(self._count, ids)) if ids else self._count(None)

    def _count(self, stream: StreamId | None) -> int:
        return max(int(n) for name, n in self._states.get(stream).items() if name.rpartition(".")[2] == "count")

    def streams(self) -> dict[StreamId, int]:
        """Number of samples of each stream."""
        return {stream: self._count(stream) for stream in self._states.ids}

    @property
    def _states(self) -> StreamStates:
        return (self._in_graph if self._on_logits is None else self._on_logits).states

    def freeze(self) -> None:
        """Stop adapting; the state stays as it is."""
        self._need_adaptive()
        self.adapting = False

    def unfreeze(self) -> None:
        """Resume adapting."""
        self._need_adaptive()
        self.adapting = True

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream; or everything, including the state of the exported model."""
        self._need_adaptive()
        with self._lock:
            self._states.forget(stream)
            if stream is None:
                memory = self._in_graph if self._on_logits is None else self._on_logits
                self._states.start = memory.blank()

    def state(self, stream: StreamId | None = None) -> dict[str, Array]:
        """Return a copy of the state, or of a stream's, with the names of a saved file."""
        self._need_adaptive()
        return self._named(self._states.known(stream))

    def _named(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """A copy with the names of a saved file, which include the head."""
        prefix = "" if self._on_logits is None else f"{next(iter(self._card.heads))}."
        return {f"{prefix}{name}": np.array(value) for name, value in state.items()}

    def save(self, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
        """Save the state as `neotta.save` does, so that `neotta.load` can load it in torch.

        Args:
            path: The file.
            stream: Save only this stream; by default, all of them if there are any.
        """
        self._need_adaptive()
        many = stream is None and bool(self._states.ids)
        about = {
            "kind": "model",
            "method": self._card.method,
            "options": self._card.options,
            "heads": self._card.heads,
            "streams": many,
        }
        if many and len(self._card.heads) > 1:
            raise OptionError("this model has several heads: save its streams one by one, with stream=")
        arrays = self._table() if many else self.state(stream)
        write_arrays(path, arrays, about)

    def _table(self) -> dict[str, Array]:
        """All streams, (S, ...) for each entry, and their ids."""
        head = next(iter(self._card.heads))
        table = self._states.everything()
        return {name if name.startswith(f"{head}.") else f"{head}.{name}": array for name, array in table.items()}

    def load(self, path: str | os.PathLike[str], *, strict: bool = True, stream: StreamId | None = None) -> None:
        """Load a file written by `save` or `neotta.save`, of one stream or many; on error, the state does not change.

        Args:
            path: The file.
            strict: Raise an error if the head weights differ.
            stream: Load the state of one stream into this one.

        Raises:
            StateFileError: The file is missing or damaged.
            StateMismatchError: The state belongs to another model or method.
            StateError: The state contains invalid values, such as NaN or a negative count.
        """
        self._need_adaptive()
        arrays, about = read_arrays(path)
        kind = (self._card.method, self._card.options)
        if about.get("kind") != "model" or (about.get("method"), about.get("options")) != kind:
            raise StateMismatchError(
                f"{os.fspath(path)!r} contains the state of {about.get('method')!r} ({about.get('options')}), "
                f"this classifier is {kind[0]!r} ({kind[1]})"
            )
        many = bool(about.get("streams"))
        if many and (stream is not None or len(self._card.heads) > 1):
            raise StateMismatchError(
                f"{os.fspath(path)!r} contains many streams: save one of them with neotta.save(model, path, stream=...)"
            )
        try:
            state = self._checked(arrays, many)
        except StateMismatchError as error:
            raise StateMismatchError(f"{os.fspath(path)!r} belongs to another model: {error}") from error
        if strict and about.get("heads") != self._card.heads:
            raise StateMismatchError(f"{os.fspath(path)!r} was saved with other head weights (see strict=False)")
        with self._lock:
            if many:
                self._states.replace(state)
            else:
                self._states.put({None if stream is None else one(stream): state})

    def _checked(self, arrays: Mapping[str, Array], many: bool) -> dict[str, Array]:
        """Validate the entries of a file, named as those of the memory."""
        if self._on_logits is None:
            return self._in_graph.check(arrays, many)
        head = f"{next(iter(self._card.heads))}."
        if foreign := [name for name in arrays if not name.startswith(head)]:
            raise StateMismatchError(f"it contains {foreign[0]!r}")
        return self._on_logits.check({name.removeprefix(head): array for name, array in arrays.items()}, many)

    def _need_adaptive(self) -> None:
        if self.form != "adaptive":
            raise NotAdaptedError(f"{self.name} is folded and has no state: export it with form='adaptive'")

    def __repr__(self) -> str:
        return f"<OnnxClassifier {self.name!r}, {self.form}, count={self.count}>"


def _logit_memory(card: Card) -> LogitMemory:
    """The rule outside the graph, starting from the state of the exported model."""
    memory = LogitMemory(rule_of_card(card), np.array(card.bias))
    (state,) = card.state.values()
    memory.states.start = {name: np.array(state[name], value.dtype) for name, value in memory.states.start.items()}
    return memory


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
