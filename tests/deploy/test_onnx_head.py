"""Reading the head of ONNX files as other exporters write them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, checker, helper, numpy_helper, save

from neotta.deploy import LogitRecenter
from neotta.deploy.onnx.head import read_head
from neotta.errors import HeadNotFoundError, ModelLoadError, OptionError

RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.normal(size=(5, 3)).astype(np.float32), RNG.normal(size=5).astype(np.float32)


@pytest.fixture
def write(tmp_path):
    """Write a graph of nodes, from input x to the outputs named, with constants; returns its path."""

    def write(*nodes, outputs=("y",), **constants):
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b"]) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        checker.check_model(model)
        save(model, tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    return write


def node(kind, inputs, outputs="y", **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), name=f"the_{kind.lower()}", **attributes)


def quantized(values):
    scale = np.float32(np.abs(values).max() / 127)
    return np.round(values / scale).astype(np.int8), scale


GRAPHS = {
    "Gemm, transposed": ([node("Gemm", "x w b", transB=1)], {"w": WEIGHT, "b": BIAS}),
    "Gemm": ([node("Gemm", "x w b")], {"w": WEIGHT.T, "b": BIAS}),
    "Gemm, scaled": ([node("Gemm", "x w b", alpha=2.0, beta=0.5)], {"w": WEIGHT.T / 2, "b": BIAS * 2}),
    "MatMul and Add": ([node("MatMul", "x w", "m"), node("Add", "m b")], {"w": WEIGHT.T, "b": BIAS}),
    "Add from the left": ([node("MatMul", "x w", "m"), node("Add", "b m")], {"w": WEIGHT.T, "b": BIAS[None]}),
    "through Cast and Identity": (
        [
            node("MatMul", "x w", "m"), node("Identity", "m", "i"), node("Add", "i b", "a"),
            node("Cast", "a", "y", to=TensorProto.FLOAT),
        ],
        {"w": WEIGHT.T, "b": BIAS},
    ),
    "weights turned in the graph": (
        [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "m"), node("Add", "m b")],
        {"w": WEIGHT, "b": BIAS},
    ),
    "bias in a node": (
        [
            node("Constant", "", "b", value=numpy_helper.from_array(BIAS)), node("MatMul", "x w", "m"),
            node("Add", "m b"),
        ],
        {"w": WEIGHT.T},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_weight_and_bias_are_found(write, name):
    nodes, constants = GRAPHS[name]
    weight, bias = read_head(write(*nodes, **constants))
    np.testing.assert_allclose(weight, WEIGHT, rtol=1e-6)
    np.testing.assert_allclose(bias, BIAS, rtol=1e-6)


def test_quantized_weights_are_read_as_the_numbers_they_mean(write):
    values, scale = quantized(WEIGHT.T)
    path = write(
        node("DequantizeLinear", "q s", "w"), node("MatMul", "x w", "m"), node("Add", "m b"), q=values, s=scale, b=BIAS
    )
    weight, bias = read_head(path)
    np.testing.assert_allclose(weight, WEIGHT, atol=scale)
    np.testing.assert_array_equal(bias, BIAS)


def test_a_head_without_bias(write):
    for path in (
        lambda: write(node("Gemm", "x w", transB=1), w=WEIGHT),
        lambda: write(node("MatMul", "x w"), w=WEIGHT.T),
    ):
        weight, bias = read_head(path())
        np.testing.assert_array_equal(weight, WEIGHT)
        assert bias is None


def test_the_logits_may_be_another_output(write):
    path = write(
        node("MatMul", "x w", "embedding"), node("Gemm", "embedding v b", "logits", transB=1),
        outputs=("embedding", "logits"), w=np.eye(3, dtype=np.float32), v=WEIGHT, b=BIAS,
    )  # fmt: skip
    np.testing.assert_array_equal(LogitRecenter.from_onnx(path, output="logits").bias, BIAS)
    assert LogitRecenter.from_onnx(path).bias is None
    with pytest.raises(OptionError, match="embedding, logits"):
        LogitRecenter.from_onnx(path, output="logit")


OTHERS = {
    "Softmax 'the_softmax' from Gemm": (
        [node("Gemm", "x w b", "l", transB=1), node("Softmax", "l")],
        {"w": WEIGHT, "b": BIAS},
    ),
    "Add 'the_add' from an input and a constant": ([node("Add", "x b")], {"b": BIAS[:3]}),
    "MatMul 'the_matmul' has a weight that is computed from an input and Transpose": (
        [node("Transpose", "x", "t"), node("MatMul", "x t")],
        {},
    ),
    "Gemm 'the_gemm' has weights that are computed": ([node("Transpose", "x", "t"), node("Gemm", "x t")], {}),
    "no node computes its output": ([node("Identity", "x")], {}),
}


@pytest.mark.parametrize("found", OTHERS)
def test_a_file_without_a_linear_head_says_what_was_found(write, found):
    nodes, constants = OTHERS[found]
    with pytest.raises(HeadNotFoundError) as caught:
        LogitRecenter.from_onnx(write(*nodes, **constants))
    assert "model.onnx' has no linear head" in str(caught.value)
    assert found in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelLoadError, match="no file"):
        LogitRecenter.from_onnx(tmp_path / "nothing.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"damaged")
    with pytest.raises(ModelLoadError, match="damaged"):
        LogitRecenter.from_onnx(tmp_path / "damaged.onnx")
