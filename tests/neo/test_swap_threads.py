"""`adapt`, `fold`, `restore`, `save` and `load` while other threads run the model, and each other."""

from __future__ import annotations

import copy
import sys
import threading
import time
import traceback

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import NotAdaptedError, StateMismatchError

SECONDS = 1.5
IMAGES = torch.linspace(-1, 1, 4 * 8).sin().reshape(4, 8) + 1


class Network(nn.Module):
    """No library's model: its head is found by running it, on the example."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, images):
        return self.head(self.body(images))


@pytest.fixture
def eager_switches():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_together(*steps, allowed=()):
    """Call functions again and again, each in its thread; return what went wrong."""
    wrong, end = [], time.monotonic() + SECONDS

    def loop(step):
        while time.monotonic() < end and not wrong:
            try:
                step()
            except allowed:
                pass
            except BaseException:
                wrong.append(traceback.format_exc())

    threads = [threading.Thread(target=loop, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@torch.no_grad()
def answers():
    """What the model says without and with NEO; every batch is the same, so the centroid is, too."""
    model = Network().eval()
    plain = model(IMAGES)
    return plain, neotta.adapt(model, "neo", example=IMAGES)(IMAGES)


@pytest.mark.usefixtures("eager_switches")
def test_every_call_sees_the_old_head_or_the_new_one(tmp_path):
    model, (plain, centred) = Network().eval(), answers()
    assert not torch.allclose(plain, centred, atol=0.01)

    @torch.no_grad()
    def call():
        logits = model(IMAGES)
        assert any(torch.allclose(logits, one, atol=1e-5) for one in (plain, centred)), logits

    def swap():
        neotta.adapt(model, "neo", example=IMAGES)
        call()
        neotta.fold(model)
        neotta.restore(model)

    def save():
        neotta.save(model, tmp_path / "state")
        neotta.load(Network(), tmp_path / "state")

    wrong = run_together(call, call, swap, save, allowed=NotAdaptedError)
    assert not wrong, wrong[0]
    assert type(model.head) is nn.Linear
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize("method", ["neo", "neo-bn"])
def test_swaps_at_the_same_time_happen_one_after_the_other(tmp_path, method):
    model, twin = Network().eval(), Network().eval()
    options = {"statistics": "ema"} if method == "neo-bn" else {}
    neotta.save(neotta.adapt(twin, method, example=IMAGES, **options), tmp_path / "state")
    before = copy.deepcopy(model.state_dict())

    def adapt():
        neotta.adapt(model, method, example=IMAGES, **options)

    def load():
        neotta.load(model, tmp_path / "state")

    steps = [adapt, adapt, load, lambda: neotta.restore(model), lambda: neotta.save(model, tmp_path / "other")]
    wrong = run_together(*steps, lambda: neotta.restore(model), allowed=NotAdaptedError)
    assert not wrong, wrong[0]
    adapt()
    neotta.restore(model)
    assert [type(module) for module in model.modules()] == [type(module) for module in Network().modules()]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_state_that_does_not_fit_a_folded_model_says_why_and_leaves_it_folded(tmp_path):
    model = neotta.adapt(Network().eval(), "neo", example=IMAGES)
    with torch.no_grad():
        model(IMAGES)
        neotta.save(model, tmp_path / "state")
        folded = neotta.fold(model)(IMAGES)
        with pytest.raises(StateMismatchError, match=r"folded bias: neotta.restore\(model\) first"):
            neotta.load(model, tmp_path / "state")
        assert torch.equal(model(IMAGES), folded)
    neotta.restore(model)
    neotta.load(model, tmp_path / "state")


@pytest.mark.usefixtures("eager_switches")
def test_loads_beside_folds_never_tell_of_other_weights(tmp_path):
    model = neotta.adapt(Network().eval(), "neo", example=IMAGES)
    model(IMAGES)
    neotta.save(model, tmp_path / "state")

    def fold():
        neotta.fold(model)
        neotta.restore(model)

    def load():
        try:
            neotta.load(model, tmp_path / "state")
        except StateMismatchError as error:
            if "folded" not in str(error):
                raise

    wrong = run_together(fold, fold, load, load, allowed=NotAdaptedError)
    assert not wrong, wrong[0]
