"""Run an exported classifier with ONNX Runtime and NumPy, without torch.

Preprocessing pictures also needs Pillow; saving and loading a state needs safetensors.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from neotta.deploy._onnx_images import Images, prepared
from neotta.deploy._onnx_session import opened
from neotta.deploy._onnx_state import OnnxState
from neotta.deploy._stream_states import ids_of, weights_of
from neotta.errors import NotAdaptedError, OptionError
from neotta.models.preprocess import Preprocess
from neotta.neo import fork_locks
from neotta.neo.reference_file import Reference
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId


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
        reference: Where clean data lies, as `neotta.reference(model, images)` measured it, or the file it was saved to:
            re-center towards it. Only for an adaptive file with neo-stream that was exported before the model adapted.
            A file exported from a model with a reference contains it.

    Attributes:
        form: "folded" or "adaptive".
        name: Name of the classifier.
        labels: Names of the classes, if known.
        preprocess: The preprocessing, if known.
        adapting: Whether `predict` adapts; see `freeze`.

    Raises:
        ModelLoadError: The file is missing, damaged, or was not written by `neotta.deploy.export`.
        StateMismatchError: The reference belongs to another model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        providers: Sequence[str] | None = None,
        threads: int | None = None,
        reference: Reference | str | os.PathLike[str] | None = None,
    ) -> None:
        self._session, card = opened(path, providers, threads)
        self._card = card
        self.form = card.form
        self.name = card.name
        self.labels = None if card.labels is None else tuple(card.labels)
        self.preprocess = None if card.preprocess is None else Preprocess.from_dict(card.preprocess)
        self.adapting = card.form == "adaptive"
        self._lock = fork_locks.register(self, wait=False)
        if card.form == "folded" and reference is not None:
            raise OptionError("a folded file does not adapt, so it takes no reference: export it with form='adaptive'")
        self._memory = OnnxState(self._session, card, reference) if card.form == "adaptive" else None

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
        batch = prepared(images, tuple(self._session.get_inputs()[0].shape[1:]), self.preprocess)
        ids, checked = ids_of(stream, len(batch)), weights_of(weights, len(batch))
        if len(batch) == 0:
            return np.empty((0, *self._session.get_outputs()[0].shape[1:]), np.float32)
        if self._memory is None:
            if stream is not None or weights is not None:
                self._adaptive()
            logits: Array = self._session.run(["logits"], {"images": batch})[0]
            return logits
        if not (adapt and self.adapting):
            return self._memory.step(batch, ids, False, checked)[0]
        with self._lock:
            answer, rejected = self._memory.step(batch, ids, True, checked)
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

    def run_in_graph(self) -> None:
        """Run the rule inside the graph, in float32, as other runtimes do; each stream of a batch is then a call."""
        self._adaptive().move_into_graph()

    # ---- the state

    @property
    def bias(self) -> Array | None:
        """Bias of the head, (C,), of an adaptive file whose rule acts on logits."""
        return None if self._card.bias is None else np.array(self._card.bias)

    @property
    def reference(self) -> Reference | None:
        """The reference, given or contained in the file."""
        return None if self._memory is None else self._memory.reference

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams; for a folded file, by the centroid that was folded in."""
        if self._memory is None:
            return self._card.samples
        ids: list[StreamId | None] = [*self._memory.states.ids]
        return sum(self._memory.count(stream) for stream in ids or [None])

    def streams(self) -> dict[StreamId, int]:
        """Number of samples of each stream."""
        memory = self._memory
        return {} if memory is None else {stream: memory.count(stream) for stream in memory.states.ids}

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
        """Return a copy of the state, or of a stream's, with the names of a saved file."""
        return self._adaptive().named(stream)

    def save(self, path: str | os.PathLike[str], *, stream: StreamId | None = None) -> None:
        """Save the state as `neotta.save` does, so that `neotta.load` can load it in torch.

        Args:
            path: The file.
            stream: Save only this stream; by default, all of them if there are any.
        """
        self._adaptive().save(path, stream)

    def load(self, path: str | os.PathLike[str], *, strict: bool = True, stream: StreamId | None = None) -> None:
        """Load a file written by `save` or `neotta.save`, of one stream or many; on error, the state does not change.

        Args:
            path: The file.
            strict: Raise an error if the head weights differ.
            stream: Load the state of one stream into this one.

        Raises:
            StateFileError: The file is missing or damaged.
            StateMismatchError: The state belongs to another model or method, or to another reference.
            StateError: The state contains invalid values, such as NaN or a negative count.
        """
        memory = self._adaptive()
        state, many = memory.read(path, strict, stream)
        with self._lock:
            memory.put(state, many, stream)

    def _adaptive(self) -> OnnxState:
        if self._memory is None:
            raise NotAdaptedError(f"{self.name} is folded and has no state: export it with form='adaptive'")
        return self._memory

    def __repr__(self) -> str:
        return f"<OnnxClassifier {self.name!r}, {self.form}, count={self.count}>"
