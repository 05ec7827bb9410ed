"""The contract, run as an author of a method would."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from neotta.adapters.none import NoAdapt
from neotta.adapters.registry import METHODS, register
from neotta.errors import StateMismatchError, UnknownMethodError, UnsupportedModelError
from neotta.testing import CHECKS, MODELS, check_adapter, contract


@pytest.fixture
def forgetful():
    class Forgetful(NoAdapt):
        name = "forgetful"
        title = "Forgetful"

        def _start(self):
            self.add_state("seen", torch.zeros(()))

        def _embeddings(self, embeddings, adapt):
            self.seen += 1  # also when it only predicts
            return super()._embeddings(embeddings, adapt) + self.seen

    yield register(Forgetful)
    METHODS._things.pop("forgetful")


def test_a_good_method_passes():
    check_adapter("lame", knn=3, models={"group-norm": MODELS["group-norm"]})
    check_adapter("neo+t3a", models={"group-norm": MODELS["group-norm"]})


class Queue(NoAdapt):
    """Subtracts the mean of the last embeddings, of which it keeps up to twenty."""

    name = "queue"
    title = "Queue"
    grows = True

    def _start(self):
        self.add_state("queue", torch.zeros(0, self.head.in_features), grows=self.grows)

    def _embeddings(self, embeddings, adapt):
        if adapt:
            good = embeddings[self.finite_rows(embeddings)]
            self.queue = torch.cat([self.queue, good.float()])[-20:]
        mean = self.queue.mean(0) if len(self.queue) else self.queue.sum(0)
        return self.classify(embeddings - mean.to(embeddings.dtype))


def test_a_state_may_grow_if_that_is_declared(monkeypatch):
    register(Queue)
    try:
        check_adapter("queue", models={"group-norm": MODELS["group-norm"]})
        monkeypatch.setattr(Queue, "grows", False)
        with pytest.raises(AssertionError, match="grows=True"):
            check_adapter("queue", models={"group-norm": MODELS["group-norm"]})
    finally:
        METHODS._things.pop("queue")


@pytest.mark.parametrize("wrong", [torch.zeros(3, 11), torch.zeros(3), torch.zeros(3, 12, 1)])
def test_what_grows_grows_along_its_first_axis(wrong):
    adapter = Queue(MODELS["group-norm"](), Queue.Options())
    adapter.load_state_dict({"queue": torch.ones(7, 12)})
    with pytest.raises(StateMismatchError):
        adapter.load_state_dict({"queue": wrong})
    assert torch.equal(adapter.queue, torch.ones(7, 12))
    adapter.reset()
    assert adapter.queue.shape == (0, 12)


def test_a_broken_promise_is_named(forgetful):
    with pytest.raises(AssertionError) as caught:
        check_adapter("forgetful", models={"group-norm": MODELS["group-norm"]})
    message = str(caught.value)
    assert "'forgetful' breaks the contract" in message
    assert "predicting_changes_nothing-forgetful-on-group-norm: AssertionError: " in message
    assert "a_batch_that_is_not_finite_never_enters_the_state-forgetful-on-group-norm: " in message
    assert "the_declaration_is_true" not in message


def test_kinds_that_a_method_does_not_support_are_left_out():
    checks = contract("neo-bn")
    assert {check.case.kind for check in checks} == {"batch-norm"}
    assert len(checks) == len(CHECKS)
    with pytest.raises(UnsupportedModelError, match="works on none of the models vit"):
        contract("neo-bn", models={"vit": MODELS["vit"]})
    with pytest.raises(UnknownMethodError):
        contract("neo-bm")


def test_torch_is_enough():
    absent = ["timm", "transformers", "torchvision", "scipy", "PIL", "cma", "pandas", "pytest", "rich", "typer"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))  # importing one of them fails
import neotta, neotta.testing
for name in neotta.methods():
    if name != "foa":
        checks = neotta.testing.contract(name)
        checks[0]()
try:
    neotta.testing.check_adapter("foa")
except neotta.errors.MissingExtraError as error:
    print(error)
"""
    options = ["-W", "error", "-W", "ignore:bn changes nothing"]
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "FOA needs the package 'cma', which is not installed: pip install 'neotta[lab]'\n"
