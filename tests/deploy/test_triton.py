"""A Triton model repository: its configuration, read by Triton's own schema, and its graph, run as Triton would."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import numpy as np
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from support.deploy_models import LABELS, PREPROCESS, network
from typer.testing import CliRunner

import neotta
from neotta.cli.app import app
from neotta.deploy import export
from neotta.errors import OptionError

DTYPES = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64}


def config_of(folder):
    """The configuration as Triton reads it."""
    files = importlib.metadata.files("tritonclient") or []
    (schema,) = (file.locate() for file in files if str(file).endswith("grpc/model_config_pb2.py"))
    spec = importlib.util.spec_from_file_location("model_config_pb2", schema)  # the package itself needs grpc
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return text_format.Parse((folder / "config.pbtxt").read_text(), module.ModelConfig()), module.DataType


def initial(folder, state, data_type):
    (start,) = state.initial_state
    assert (start.data_type, list(start.dims)) == (state.data_type, list(state.dims))
    dtype = DTYPES[data_type.Name(state.data_type)]
    if start.zero_data:
        return np.zeros(state.dims, dtype)
    return np.frombuffer((folder / "initial_state" / start.data_file).read_bytes(), dtype).reshape(state.dims)


@pytest.mark.parametrize("rule", ["neo-stream", "neo"])
@pytest.mark.parametrize("seen", [pytest.param(0, marks=pytest.mark.slow), 5])
@torch.no_grad()
def test_the_server_can_keep_the_state_of_each_camera(tmp_path, rule, seen):
    model = neotta.adapt(network(), rule)
    generator = torch.Generator().manual_seed(1)
    if seen:
        model(torch.randn(seen, 3, 32, 32, generator=generator) + 0.5)
    export(model, tmp_path, form="triton", preprocess=PREPROCESS, labels=LABELS, name="my net", verify=False)
    folder = tmp_path / "my-net"
    config, data_type = config_of(folder)
    assert (config.name, config.backend, config.max_batch_size) == ("my-net", "onnxruntime", 0)
    assert [(port.name, list(port.dims)) for port in config.input] == [("images", [-1, 3, 32, 32])]
    assert [port.name for port in config.output] == ["logits", "rejected"]
    assert (folder / config.output[0].label_filename).read_text().split() == LABELS
    assert config.sequence_batching.WhichOneof("strategy_choice") == "oldest"

    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    ports = {port.name: port.shape for port in (*session.get_inputs(), *session.get_outputs())}
    states = config.sequence_batching.state
    for state in states:  # what Triton checks when it loads a model
        assert list(state.dims) == ports[state.input_name] == ports[state.output_name]
    assert {port.name for port in session.get_inputs()} == {"images", *(state.input_name for state in states)}
    held = {state.input_name: initial(folder, state, data_type) for state in states}
    assert (folder / "initial_state").exists() is bool(seen)
    for rows in (1, 4, 2):
        images = torch.randn(rows, 3, 32, 32, generator=generator) + 0.5
        names = ["logits", *(state.output_name for state in states)]
        logits, *after = session.run(names, {"images": images.numpy(), **held})
        held = {state.input_name: value for state, value in zip(states, after, strict=True)}
        np.testing.assert_allclose(logits, model(images), atol=1e-4)
    assert held["count"].tolist() == [seen + 7]


@pytest.mark.slow
def test_the_command_and_its_errors(tmp_path):
    done = CliRunner().invoke(
        app, ["export", "digits", "--triton", str(tmp_path / "repository"), "--no-verify"], catch_exceptions=False
    )
    assert f"--model-repository={tmp_path / 'repository'}" in done.stdout
    config, _ = config_of(tmp_path / "repository" / "digits")
    assert [state.input_name for state in config.sequence_batching.state] == ["state", "count"]
    wrong = {
        "exists": ["--triton", str(tmp_path / "repository"), "--no-verify"],
        "one of the two": [],
        "omit --form": ["--triton", str(tmp_path / "x"), "--form", "adaptive"],
    }
    for message, words in wrong.items():
        with pytest.raises(OptionError, match=message):
            CliRunner().invoke(app, ["export", "digits", *words], catch_exceptions=False)
