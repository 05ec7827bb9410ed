"""State files and exported files from strangers."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import damaged, fuzz, only_own_errors, strange
from torch import nn

import neotta
from neotta.deploy.onnx.card import KEY, Card
from neotta.neo.statefile import read_arrays, read_state, write_state

BATCH = torch.linspace(-1, 1, 32).reshape(4, 8)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


def saved(folder, method="neo", streams=False):
    model = neotta.adapt(network(), method, head="2", streams=streams)
    with torch.no_grad(), neotta.streams(["a", 2, "c", 2]):
        model(BATCH)
    neotta.save(model, folder / "good")
    return (folder / "good").read_bytes()


@pytest.fixture(scope="module", params=["neo", "neo-stream", "streams"])
def state(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    content = saved(folder, "neo" if request.param == "streams" else request.param, request.param == "streams")
    return content, read_state(folder / "good")


def use(path):
    """Everything that reads a state; on error nothing changes."""
    model = network()
    with only_own_errors():
        try:
            neotta.load(model, path, strict=False)
        except neotta.NeottaError:
            assert type(model[2]) is nn.Linear
            raise
        logits = model(BATCH)
        assert torch.isfinite(logits).all(), "a state that makes every answer NaN"
    with only_own_errors():
        neotta.merge([path, path])
    with only_own_errors():
        neotta.create("neo", network(), head="2").load(path)
    with only_own_errors():
        read_arrays(path)


@given(data=st.data())
@fuzz(25)
def test_damaged_states(state, data, tmp_path):
    (tmp_path / "bad").write_bytes(data.draw(damaged(state[0])))
    use(tmp_path / "bad")


DTYPES = [torch.float64, torch.float32, torch.int64, torch.bool, torch.uint8, torch.float16]


@st.composite
def strange_tensors(draw, tensors):
    tensors = dict(tensors)
    name = draw(st.sampled_from(sorted(tensors)))
    how = draw(st.sampled_from(["value", "dtype", "shape", "gone", "name", "none"]))
    tensor = tensors.pop(name)
    if how == "value":
        real = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 0.5, 1e10])
        value = draw(real if tensor.is_floating_point() else st.sampled_from([-1, 0, 2**62, 3]))
        tensors[name] = torch.full_like(tensor, value) if tensor.dtype != torch.uint8 else tensor.flip(0)
    elif how == "dtype":
        tensors[name] = tensor.to(draw(st.sampled_from(DTYPES)))
    elif how == "shape":
        tensors[name] = torch.zeros(draw(st.lists(st.integers(0, 9), max_size=3)), dtype=tensor.dtype)
    elif how == "name":
        tensors[draw(st.sampled_from(["", "2.", "2.mean.x", "other"]))] = tensor
    elif how == "none":
        tensors[name] = tensor
    return tensors


@given(data=st.data())
@fuzz(30)
def test_states_that_are_whole_but_make_no_sense(state, data, tmp_path):
    tensors, about = state[1]
    tensors, about = data.draw(strange_tensors(tensors)), data.draw(st.just(about) | strange(about))
    try:
        write_state(tmp_path / "bad", tensors, about if isinstance(about, dict) else {"kind": about})
    except (TypeError, ValueError, OverflowError):
        return  # no JSON
    use(tmp_path / "bad")


CARD = {"form": "adaptive", "name": "n", "method": "neo", "options": {}, "samples": 3, "preprocess": None}
CARD |= {"labels": ["a"], "state": "", "bias": None, "neotta": "1"}


@given(data=st.data())
@fuzz(50)
def test_cards_of_onnx_files(data):
    good = json.loads(Card(**CARD).to_json())
    try:
        text = json.dumps(data.draw(strange(good)))
    except (TypeError, ValueError):
        return
    with only_own_errors():
        Card.read({KEY: text})
    with only_own_errors():
        Card.read({KEY: data.draw(damaged(json.dumps(good).encode())).decode("latin-1")})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    from neotta.deploy import export

    model = neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval(), "neo", head="1")
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    export(model, path, form="adaptive", example=torch.zeros(2, 3, 4, 4), verify=False)
    return path.read_bytes()


@pytest.mark.slow
@given(data=st.data())
@fuzz(25)
def test_damaged_onnx_files(exported, data, tmp_path):
    from neotta.deploy import OnnxClassifier

    (tmp_path / "m.onnx").write_bytes(data.draw(damaged(exported)))
    with only_own_errors():
        OnnxClassifier(tmp_path / "m.onnx")


@pytest.mark.slow
@given(data=st.data())
@fuzz(25)
def test_onnx_files_with_strange_cards(exported, data, tmp_path):
    """The card is changed and the checksum taken away, as in a file that another program wrote."""
    import onnx

    from neotta.deploy import OnnxClassifier

    model = onnx.load(io.BytesIO(exported))
    entries = {entry.key: entry.value for entry in model.metadata_props}
    try:
        card = json.dumps(data.draw(strange(json.loads(entries[KEY]))))
    except (TypeError, ValueError):
        return
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {KEY: card})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with only_own_errors():
        classifier = OnnxClassifier(tmp_path / "m.onnx")
        assert np.isfinite(classifier.predict(np.zeros((2, 3, 4, 4), np.float32))).all()
