"""Write a model repository for NVIDIA Triton: the adaptive ONNX file, with its state kept by the server.

Triton keeps the state of each sequence (a camera) and passes it to the graph with every request: implicit state
management of its sequence batcher. It cannot keep scalars, so those get a dimension of 1.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neotta._files import atomic
from neotta.deploy._graph import AdaptiveGraph, entry_of
from neotta.deploy.exporters import ExportJob, register_exporter
from neotta.deploy.onnx_export import write_adaptive
from neotta.errors import OptionError
from neotta.neo.surgery import heads

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

    from neotta.neo.statefile import Array

SEQUENCES = 1024  # cameras at the same time
IDLE = 24 * 3600 * 1_000_000  # microseconds without a request after which Triton forgets a camera: a day
_TYPES = {1: "TYPE_FP32", 7: "TYPE_INT64"}  # by the element types of ONNX


@register_exporter("triton")
def write_triton(job: ExportJob) -> None:
    """Write the folder of a model in a Triton repository: `job.path/NAME`."""
    import onnx

    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", job.name).strip("-.") or "model"
    folder = job.path / name
    if job.path.is_file() or folder.exists():
        raise OptionError(f"{folder} exists: name another folder, or remove it first")
    found = heads(job.model)
    carried = AdaptiveGraph(job.model, found).carried
    several = len(found) > 1
    state = {
        f"{head}.{entry}" if several else entry: entry_of(found[head], entry).cpu().numpy() for head, entry in carried
    }
    with tempfile.TemporaryDirectory() as temporary:
        write_adaptive(dataclasses.replace(job, path=Path(temporary) / "model.onnx"))
        proto = onnx.load(str(Path(temporary) / "model.onnx"))
    del proto.metadata_props[:]  # the description is that of a file for OnnxClassifier, which takes scalars
    _widen_scalars(proto.graph, [*state, *(f"next_{port}" for port in state), *_counters(proto.graph, state)])
    onnx.checker.check_model(proto)
    files = {"1/model.onnx": proto.SerializeToString(), "config.pbtxt": _config(proto.graph, name, state, job).encode()}
    if job.labels is not None:
        files["labels.txt"] = "".join(f"{label}\n" for label in job.labels).encode()
    files.update({f"initial_state/{port}": value.tobytes() for port, value in state.items() if value.any()})
    for place, content in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        with atomic(folder / place) as temporary_file:
            temporary_file.write_bytes(content)


def _counters(graph: GraphProto, state: dict[str, Array]) -> list[str]:
    """The outputs that are neither logits nor state: the number of rejected rows of each head."""
    known = {"logits", *(f"next_{port}" for port in state)}
    return [port.name for port in graph.output if port.name not in known]


def _widen_scalars(graph: GraphProto, names: Sequence[str]) -> None:
    """Give inputs and outputs without dimensions a dimension of 1."""
    import numpy as np
    from onnx import helper, numpy_helper

    axes = "neotta_first_axis"
    graph.initializer.append(numpy_helper.from_array(np.array([0]), axes))
    before, after = [], []
    for port in (*graph.input, *graph.output):
        if port.name not in names or port.type.tensor_type.shape.dim:
            continue
        inner = f"{port.name}_scalar"
        _rename(graph, port.name, inner)
        port.type.tensor_type.shape.dim.add().dim_value = 1
        if port in graph.input:
            before.append(helper.make_node("Squeeze", [port.name, axes], [inner]))
        else:
            after.append(helper.make_node("Unsqueeze", [inner, axes], [port.name]))
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)


def _rename(graph: GraphProto, old: str, new: str) -> None:
    """Rename a value in the nodes of a graph and their subgraphs."""
    for node in graph.node:
        for ends in (node.input, node.output):
            ends[:] = [new if name == old else name for name in ends]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, old, new)


def _config(graph: GraphProto, name: str, state: dict[str, Array], job: ExportJob) -> str:
    """The text of config.pbtxt."""
    inputs = {port.name: port for port in graph.input}
    outputs = [port for port in graph.output if not port.name.startswith("next_")]
    labels = ['label_filename: "labels.txt"'] if job.labels is not None else []
    lines = [
        f'name: "{name}"',
        'backend: "onnxruntime"',
        "max_batch_size: 0",  # the rule sees a batch of one camera as a whole
        _block("input", _port(inputs["images"])),
        *(_block("output", [*_port(port), *(labels if port.name == "logits" else [])]) for port in outputs),
        "sequence_batching {",
        f"  max_sequence_idle_microseconds: {IDLE}",
        f"  oldest {{ max_candidate_sequences: {SEQUENCES} }}",
        *(_state(inputs[port], value) for port, value in state.items()),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _port(port: ValueInfoProto) -> list[str]:
    tensor = port.type.tensor_type
    dims = ", ".join(str(dim.dim_value or -1) for dim in tensor.shape.dim)
    return [f'name: "{port.name}"', f"data_type: {_TYPES[tensor.elem_type]}", f"dims: [ {dims} ]"]


def _state(port: ValueInfoProto, value: Any) -> str:
    _, kind, dims = _port(port)
    start = f'data_file: "{port.name}"' if value.any() else "zero_data: true"
    initial = _block("initial_state", [f'name: "{port.name} of a new camera"', kind, dims, start])
    lines = [f'input_name: "{port.name}"', f'output_name: "next_{port.name}"', kind, dims]
    text = _block("state", [*lines, *initial.splitlines()])
    return "\n".join(f"  {line}" for line in text.splitlines())


def _block(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{name} {{", *(f"  {line}" for line in lines), "}"])
