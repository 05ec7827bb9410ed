"""The checks of the contract that are about what is kept: the state of the adapter, and the model as it was."""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neotta.adapters.registry import create
from neotta.errors import (
    NeottaError,
    StateFileError,
    StateMismatchError,
)
from neotta.neo.find_head import logits_of
from neotta.neo.split import split
from neotta.testing._case import Case, images, raises, same


def predicting_changes_nothing(case: Case) -> None:
    """`adapt=False` changes nothing that a later call can see."""
    adapter, twin = case.adapter(), case.adapter()
    for seed in range(3):
        before = adapter.state_dict()
        first = adapter(images(4, seed=50), adapt=False)
        assert torch.equal(first, adapter(images(4, seed=50), adapt=False)), "a second prediction differs"
        assert same(before, adapter.state_dict()), "predicting changed the state"
        assert torch.equal(adapter(images(6, seed)), twin(images(6, seed))), "predicting changed a later answer"


def reset_is_exact(case: Case) -> None:
    """`reset()` goes back to the state right after construction, bit for bit."""
    adapter, fresh = case.adapter(), case.adapter()
    start = adapter.state_dict()
    answers = [adapter(images(6, seed)) for seed in range(3)]
    adapter.reset()
    assert same(start, adapter.state_dict()), "reset() does not restore the state"
    assert same(start, fresh.state_dict()), "two new adapters differ"
    for seed, answer in enumerate(answers):
        assert torch.equal(answer, adapter(images(6, seed))), "after reset() the answers differ"


def the_model_is_never_touched(case: Case) -> None:
    """Between calls the model is as it was: weights, gradients, modes, hooks, attributes."""
    model = case.model().train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, modules = copy.deepcopy(model), dict(model.named_modules())
    adapter = case.adapter(model)
    for seed in range(2):
        adapter(images(6, seed))
        assert dict(model.named_modules()) == modules, "modules were exchanged"
        _assert_untouched(model, before)
    assert adapter.detach() is model
    for after in (lambda: adapter(images(2)), lambda: adapter(images(0)), adapter.reset):
        with raises(NeottaError, match="detached"):
            after()


def _assert_untouched(model: nn.Module, before: nn.Module) -> None:
    for (name, tensor), old in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(tensor, old), f"{name} changed"
    for parameter, was in zip(model.parameters(), before.parameters(), strict=True):
        assert parameter.requires_grad == was.requires_grad, "requires_grad changed"
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.ones_like(parameter)), "a gradient changed"
    for module, earlier in zip(model.modules(), before.modules(), strict=True):
        assert module.training == earlier.training, "a mode changed"
        assert vars(module).keys() == vars(earlier).keys(), "a module has other attributes"
        assert not module._forward_hooks, "a hook was left"
        assert not module._forward_pre_hooks, "a hook was left"


def a_failure_in_the_middle_leaves_the_model_whole(case: Case) -> None:
    """An error inside the model passes through, and nothing stays behind."""
    model = case.model()
    adapter = case.adapter(model)
    modules, before = dict(model.named_modules()), logits_of(model(images(4)))

    def fail(module: nn.Module, args: Any) -> None:
        raise RuntimeError("the cable is out")

    hook = split(model).head.register_forward_pre_hook(fail)
    with raises(RuntimeError, match="cable"):
        adapter(images(4))
    hook.remove()
    assert dict(model.named_modules()) == modules, "modules were exchanged"
    assert torch.equal(logits_of(model(images(4))), before), "the model answers differently"
    adapter(images(4))


def a_state_continues_exactly(case: Case) -> None:
    """A state, by `state_dict` or from a file, continues as if never stopped."""
    adapter = case.adapter()
    for seed in range(2):
        adapter(images(6, seed))
    state = adapter.state_dict()
    by_dict, by_file = case.adapter(), case.adapter()
    by_dict.load_state_dict(state)
    with tempfile.TemporaryDirectory() as folder:
        adapter.save(Path(folder) / "state")
        by_file.load(Path(folder) / "state")
    for seed in range(2, 5):
        answer = adapter(images(5, seed))
        for other in (by_dict, by_file):
            assert torch.equal(answer, other(images(5, seed))), "a state that was loaded answers differently"


def states_of_others_are_refused(case: Case) -> None:
    """A state that does not fit raises an error, and nothing is lost."""
    model = case.model()
    adapter = case.adapter(model)
    adapter(images(6))
    before = adapter.state_dict()
    with raises(StateMismatchError):
        adapter.load_state_dict({**before, "something": torch.zeros(3)})
    for name in list(before)[:1]:
        with raises(StateMismatchError):
            adapter.load_state_dict({**before, name: torch.zeros(3, 1, 4)})
        with raises(StateMismatchError):
            adapter.load_state_dict({key: value for key, value in before.items() if key != name})
    other = "neo" if case.name == "none" else "none"
    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "bad"
        bad.write_bytes(b"no state")
        with raises(StateFileError):
            adapter.load(bad)
        create(other, model).save(bad)
        with raises(StateMismatchError, match=other):
            adapter.load(bad)
    assert same(before, adapter.state_dict()), "a refused state left traces"


def a_batch_that_is_not_finite_never_enters_the_state(case: Case) -> None:
    """NaN and Inf are predicted, counted and warned of."""
    for value in (float("nan"), float("inf")):
        adapter, clean = case.adapter(), case.adapter()
        adapter(images(6)), clean(images(6))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert adapter(torch.full_like(images(3), value)).shape == (3, adapter.num_classes)
        state = adapter.state_dict()
        unknown = {name for name, tensor in clean.state_dict().items() if tensor.isnan().any()}
        for name in state.keys() - unknown:
            assert state[name].isfinite().all(), f"{name} of the state is no longer finite"
        if state:
            assert adapter.skipped == 3, f"3 samples were to be skipped, {adapter.skipped} were"
            assert any("NaN or Inf" in str(warning.message) for warning in caught), "no warning names NaN or Inf"
        torch.testing.assert_close(adapter(images(4, seed=8)), clean(images(4, seed=8)), rtol=1e-5, atol=1e-5)
