"""The adaptive graph, a model that takes and returns its state with every call; and torch modules as ONNX graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neotta.errors import OptionError, UnsupportedModelError
from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.streams import Streams

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto


class _Port:
    """What goes in and out of a head in one call; not a tuple or a module, whose tensors `torch.export` looks for."""

    adapt: Tensor
    before: Tensor
    after: Tensor


class GraphStreams(Streams):
    """One stream in float32 whose state comes and goes with every call."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams.rule, streams.size, device=streams.table.device)
        self.table = streams.state().float()
        self.port = _Port()

    def step(self, rows: Tensor, bias: Tensor | None, *, adapt: bool = True, weights: Tensor | None = None) -> Tensor:
        """Learn from rows, (N, size), if the input `adapt` says so; what to subtract, (N, size) or (1, size)."""
        state, port = self.port.before, self.port
        rows = rows.to(state.dtype)
        bias = rows.new_zeros(1) if bias is None else bias.to(state.dtype)
        after, offsets = self.rule.update(state, rows[None], None, bias)
        port.after = torch.where(port.adapt, after, state)
        return torch.where(port.adapt, offsets, self.rule.standing(state)[:, None])[0]


class AdaptiveGraph(nn.Module):
    """A stateless module; inside the context `within`, the NEO heads of the model work as parts of it."""

    def __init__(self, model: nn.Module, heads: dict[str, NEOHead]) -> None:
        super().__init__()
        self.model = model
        tables = [GraphStreams(neo.streams) for neo in heads.values()]
        self.states, self._ports = [each.table for each in tables], [each.port for each in tables]
        self.heads = [neo.holding(streams) for neo, streams in zip(heads.values(), tables, strict=True)]
        self.within = ModuleSwap(model, dict(zip(heads.values(), self.heads, strict=True)))

    def forward(self, images: Tensor, adapt: Tensor, states: list[Tensor]) -> tuple[Tensor, ...]:
        """Logits (B, C), and the new state of each head, for images (B, 3, H, W) and states, (1, width)."""
        for port, state in zip(self._ports, states, strict=True):
            port.adapt, port.before = adapt, state
        logits = logits_of(self.model(images))
        return logits, *(port.after for port in self._ports)


BATCH = torch.export.Dim("batch")
OPSET = 18  # the lowest that torch's exporter supports natively, for the most runtimes
_MARK = "neotta."


def check_opset(opset: int) -> None:
    """Check that the version of the operators is supported."""
    from onnx.defs import onnx_opset_version

    newest = onnx_opset_version()
    if not isinstance(opset, int) or not OPSET <= opset <= newest:
        raise OptionError(f"opset is {opset!r}: expected a version of the ONNX operators from {OPSET} to {newest}")


def program(
    module: nn.Module, inputs: tuple[Any, ...], shapes: tuple[Any, ...], ins: list[str], outs: list[str], opset: int
) -> ModelProto:
    """Convert a module to ONNX, given example inputs and their dynamic shapes as `torch.export` takes them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # internal warnings of torch and onnxscript
            traced = torch.export.export(_Logits(module), inputs, dynamic_shapes=(shapes,), strict=False)
            made = torch.onnx.export(
                traced,
                dynamo=True,
                input_names=[_MARK + name for name in ins],
                output_names=[_MARK + name for name in outs],
                opset_version=opset,
                verbose=False,
            )
    except Exception as error:  # whatever torch's exporter raises
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedModelError(f"{type(module).__name__} cannot be exported to ONNX: {reason[0]}") from error
    if made is None:  # pragma: no cover - only the old exporter returns nothing
        raise UnsupportedModelError(f"{type(module).__name__} cannot be exported to ONNX")
    proto = made.model_proto
    written = {entry.version for entry in proto.opset_import if entry.domain == ""}
    if written != {opset}:  # torch only logs this
        raise UnsupportedModelError(f"this model cannot be exported in opset {opset}: try opset={OPSET}")
    # The exporter does not prevent inner values, for example a mean, from having the name of an input or output.
    _rename(proto.graph, {name: f"{name}_inside" for name in (*ins, *outs)})
    _rename(proto.graph, {_MARK + name: name for name in (*ins, *outs)})
    _forget_shapes_of_weights(proto.graph)
    _forget_origins(proto.graph)
    return proto


def _forget_origins(graph: GraphProto) -> None:
    """Remove the lines of source code that torch notes at every node: they are most of a small file."""
    for inner in _graphs(graph):
        for node in inner.node:
            del node.metadata_props[:]
            node.doc_string = ""


def _forget_shapes_of_weights(graph: GraphProto) -> None:
    """Remove the second description of each weight: tools that transpose a weight, as quantizers do, leave it stale."""
    weights = {tensor.name for tensor in graph.initializer}
    others = [value for value in graph.value_info if value.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(others)


def _rename(graph: GraphProto, names: dict[str, str]) -> None:
    for inner in _graphs(graph):
        for value in (*inner.input, *inner.output, *inner.value_info, *inner.initializer):
            value.name = names.get(value.name, value.name)
        for node in inner.node:
            for ends in (node.input, node.output):
                ends[:] = [names.get(name, name) for name in ends]


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _graphs(inner)


class _Logits(nn.Module):
    """Returns only tensors, whatever output object the model returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        output = self.module(*inputs)
        return output if isinstance(self.module, AdaptiveGraph) else logits_of(output)
