"""Find the linear head in an ONNX file: the Gemm, or MatMul and Add, that computes the logits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neotta._extras import need
from neotta.deploy.onnx.card import Card
from neotta.errors import AlreadyAdaptedError, HeadNotFoundError, ModelLoadError, OptionError
from neotta.neo.statefile import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_PASS = {"Identity", "Cast", "Dropout", "Flatten", "Reshape", "Squeeze", "QuantizeLinear", "DequantizeLinear"}
_CONSTANT = {"Constant", "Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "DequantizeLinear"}


def read_head(
    path: str | os.PathLike[str], output: str | None = None, *, adapted: bool = False
) -> tuple[Array, Array | None]:
    """Read the weight, (C, d), and the bias, (C,) or None, of the head of an ONNX classifier.

    A file that is adaptive, or was adapted and folded, raises an error, unless `adapted`.
    """
    onnx = need("onnx", "reading the head of an ONNX file")
    if not Path(path).is_file():
        raise ModelLoadError(f"there is no file {os.fspath(path)!r}")
    try:
        model = onnx.load(os.fspath(path))
    except Exception as error:  # from protobuf, or from external weights
        raise ModelLoadError(f"{os.fspath(path)!r} is damaged or not an ONNX file: {error}") from error
    card = None if adapted else Card.read({entry.key: entry.value for entry in model.metadata_props})
    if card is not None and card.form == "adaptive":
        raise AlreadyAdaptedError(
            f"{os.fspath(path)!r} is adaptive and already re-centers its logits: run it with OnnxClassifier"
        )
    if card is not None and card.samples:
        raise AlreadyAdaptedError(
            f"{os.fspath(path)!r} has the centroid of {card.samples} samples in its bias, which would be subtracted "
            "twice: export the model before adapting it, or in the adaptive form"
        )
    outputs = [port.name for port in model.graph.output]
    if not outputs or (output is not None and output not in outputs):
        raise OptionError(f"{os.fspath(path)!r} has no output {output!r}: it has {', '.join(outputs) or 'none'}")
    try:
        return _Graph(model).head(output or outputs[0])
    except HeadNotFoundError as error:
        raise HeadNotFoundError(f"{os.fspath(path)!r} has no linear head: {error}") from None


class _Graph:
    def __init__(self, model: ModelProto) -> None:
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.makers = {name: node for node in model.graph.node for name in node.output if name}
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}

    def head(self, logits: str) -> tuple[Array, Array | None]:
        node = self.maker(logits)
        if node is None:
            raise HeadNotFoundError(f"no node computes its output {logits!r}")
        if node.op_type == "Gemm":
            return self.gemm(node)
        if node.op_type == "MatMul":
            return self.matmul(node), None
        if node.op_type == "Add":
            for product, added in (node.input, reversed(node.input)):
                inner, bias = self.maker(product), self.constant(added)
                if inner is not None and inner.op_type == "MatMul" and bias is not None:
                    return self.fitting(self.matmul(inner), bias)
        raise HeadNotFoundError(
            f"its output {logits!r} is computed by {_said(node)} from {self.sources(node)}: expected a Gemm, or a "
            "MatMul and an Add of constants. Pass the head's bias yourself: LogitRecenter(bias=...)"
        )

    def gemm(self, node: NodeProto) -> tuple[Array, Array | None]:
        attributes = {attribute.name: attribute.f or attribute.i for attribute in node.attribute}
        weight = self.constant(node.input[1])
        bias = self.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if weight is None or attributes.get("transA") or (bias is None and len(node.input) > 2 and node.input[2]):
            raise HeadNotFoundError(f"{_said(node)} has weights that are computed from {self.sources(node)}")
        weight = (weight if attributes.get("transB") else weight.T) * attributes.get("alpha", 1.0)
        if bias is None:
            return weight, None
        return self.fitting(weight, bias * attributes.get("beta", 1.0))

    def matmul(self, node: NodeProto) -> Array:
        weight = self.constant(node.input[1])
        if weight is None or weight.ndim != 2:
            raise HeadNotFoundError(f"{_said(node)} has a weight that is computed from {self.sources(node)}")
        return weight.T

    def fitting(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        if bias.size not in (1, len(weight)):
            raise HeadNotFoundError(f"the bias has {bias.size} numbers, but the weight has {len(weight)} classes")
        return weight, np.broadcast_to(bias.reshape(-1), len(weight)).copy()

    def maker(self, name: str) -> NodeProto | None:
        """The node that computes a value, ignoring nodes that do not change its numbers."""
        node = self.makers.get(name)
        while node is not None and node.op_type in _PASS:
            node = self.makers.get(node.input[0])
        return node

    def constant(self, name: str) -> Array | None:
        """The value of `name` if it does not depend on the inputs of the graph, otherwise None."""
        from onnx import numpy_helper
        from onnx.reference import ReferenceEvaluator

        if name in self.initializers:
            return np.asarray(numpy_helper.to_array(self.initializers[name]))
        node = self.makers.get(name)
        if node is None or node.op_type not in _CONSTANT:
            return None
        inputs = {source: self.constant(source) for source in node.input if source}
        if any(value is None for value in inputs.values()):
            return None
        results: Any = ReferenceEvaluator(node, opsets=self.opsets).run(None, inputs)
        return np.asarray(results[0])

    def sources(self, node: NodeProto) -> str:
        kinds = []
        for name in node.input:
            maker = self.makers.get(name)
            kinds.append(maker.op_type if maker else "a constant" if name in self.initializers else "an input")
        return " and ".join(kinds) or "nothing"


def _said(node: NodeProto) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else f"a {node.op_type}"
