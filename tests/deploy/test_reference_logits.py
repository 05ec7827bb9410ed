"""References without torch: `LogitRecenter`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.deploy import LogitRecenter
from neotta.errors import OptionError, StateMismatchError

CLASSES, WIDTH = 5, 12


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    with torch.no_grad():
        model[3].weight *= 6
    return model.eval()


def pictures(count: int = 200, seed: int = 1, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed)) * 2 + shift


@pytest.fixture(scope="module")
def known() -> neotta.Reference:
    return neotta.reference(network(), pictures())


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    with torch.no_grad():
        return network()(pictures(90, 2, 0.4)).numpy()


def adapted_answers(method: str, known: neotta.Reference) -> np.ndarray:
    model = neotta.adapt(network(), method, reference=known)
    with torch.no_grad():
        return torch.cat([model(batch) for batch in pictures(90, 2, 0.4).split(16)]).numpy()


def in_batches(predict, rows) -> np.ndarray:
    return np.concatenate([predict(rows[start : start + 16]) for start in range(0, len(rows), 16)])


def test_logits_are_recentered_towards_the_reference_as_by_the_layer(known, plain, tmp_path):
    known.save(tmp_path / "reference.safetensors")
    wanted = adapted_answers("neo-stream", known)
    bias = network()[3].bias
    for given in (known, tmp_path / "reference.safetensors"):
        found = in_batches(LogitRecenter(bias, reference=given).recenter, plain)
        np.testing.assert_allclose(found, wanted, atol=2e-4)
    without_bias = in_batches(LogitRecenter(reference=known).recenter, plain)  # the reference takes its place
    np.testing.assert_allclose(without_bias, wanted, atol=2e-4)
    assert abs(in_batches(LogitRecenter(bias).recenter, plain) - wanted).max() > 0.01


def test_a_reference_of_another_head_is_refused(known, plain):
    other = neotta.reference(network(5), pictures())
    head, foreign = network()[3], network(5)[3]
    with pytest.raises(StateMismatchError, match="bias differs"):
        LogitRecenter(head.bias, reference=other).recenter(plain)
    with torch.no_grad():
        foreign.bias.copy_(head.bias)
    with pytest.raises(StateMismatchError, match="weight differs"):
        LogitRecenter(head.bias, weight=foreign.weight, reference=known).recenter(plain)
    LogitRecenter(head.bias, weight=head.weight, reference=known).recenter(plain)
    with pytest.raises(StateMismatchError, match="5 classes, the logits 4"):
        LogitRecenter(reference=known).recenter(plain[:, :4])
    with pytest.raises(OptionError, match="neo-stream"):
        LogitRecenter(head.bias, rule="neo", reference=known).recenter(plain)
    with pytest.raises(OptionError, match="expected the result of"):
        LogitRecenter(reference=3).recenter(plain)


def test_a_state_belongs_to_its_reference(known, plain, tmp_path):
    one, other = LogitRecenter(reference=known), LogitRecenter()
    one.partial_fit(plain)
    one.save(tmp_path / "state.safetensors")
    again = LogitRecenter(reference=known)
    again.load(tmp_path / "state.safetensors")
    np.testing.assert_array_equal(again.transform(plain), one.transform(plain))
    with pytest.raises(StateMismatchError, match="options"):
        other.load(tmp_path / "state.safetensors")
    with pytest.raises(StateMismatchError, match="options"):
        one.merge(other.partial_fit(plain))
    other.reference = known
    with pytest.raises(OptionError, match="another reference"):
        other.recenter(plain)


def test_no_torch_is_needed(known, tmp_path):
    known.save(tmp_path / "reference.safetensors")
    code = (
        "import sys, numpy as np; from neotta.deploy import LogitRecenter; import neotta; "
        f"path = {str(tmp_path / 'reference.safetensors')!r}; "
        "LogitRecenter(reference=path).recenter(np.eye(5) * 3); LogitRecenter(reference=neotta.Reference.load(path)); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
