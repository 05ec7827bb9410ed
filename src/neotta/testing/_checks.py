"""The checks of the contract (see `neotta.adapters.base`), one function each."""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.registry import create, find
from neotta.errors import (
    InputError,
    ModelChangedError,
    NeottaError,
    OptionError,
    StateFileError,
    StateMismatchError,
    UnsupportedModelError,
)
from neotta.neo.find_head import logits_of
from neotta.neo.split import split
from neotta.testing._case import Case, images, raises, same


def logits_have_the_right_shape_and_no_graph(case: Case) -> None:
    """For any batch size, zero included."""
    adapter = case.adapter()
    classes = adapter.num_classes
    for rows in (5, 1, 3, 8):
        logits = adapter(images(rows, seed=rows))
        assert logits.shape == (rows, classes), f"{rows} images give logits of {tuple(logits.shape)}"
        assert logits.isfinite().all(), "logits are not finite"
        assert not logits.requires_grad, "a graph hangs on the logits"
        torch.testing.assert_close(logits.softmax(1).sum(1), torch.ones(rows))
    for adapt in (True, False):
        assert adapter(images(0), adapt=adapt).shape == (0, classes), "an empty batch gives no empty result"


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

    with split(model).head.register_forward_pre_hook(fail), raises(RuntimeError, match="cable"):
        adapter(images(4))
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


def states_of_others_are_rejected(case: Case) -> None:
    """A state that does not fit raises an error, and nothing is lost."""
    model = case.model()
    adapter = case.adapter(model)
    adapter(images(6))
    before = adapter.state_dict()
    with raises(StateMismatchError):
        adapter.load_state_dict({**before, "something": torch.zeros(3)})
    for name in list(before)[:1]:
        with raises(StateMismatchError):
            adapter.load_state_dict({**before, name: torch.zeros(3, 1, 4, 1, 2)})  # no part has such a shape
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
    assert same(before, adapter.state_dict()), "a rejected state left traces"


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


def dtypes_are_kept(case: Case) -> None:
    """Answers have the model's dtype, statistics at least float32; methods with gradients reject half precision."""
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        model = case.model().to(dtype)
        if dtype.itemsize < 4 and not case.adapter().declaration.backprop_free:
            with raises(UnsupportedModelError, match="float32"):
                case.adapter(model)
            continue
        adapter = case.adapter(model)
        for seed in range(2):
            logits = adapter(images(6, seed, dtype))
        assert logits.dtype == dtype, f"the model is {dtype}, the logits are {logits.dtype}"
        assert logits.isfinite().all()
        for name, tensor in adapter.state_dict().items():
            assert not tensor.is_floating_point() or tensor.dtype.itemsize >= 4, f"{name} is kept in {tensor.dtype}"


def classes_are_kept_before_anything_else(case: Case) -> None:
    """`classes=` takes indices or a mask, and rejects anything else."""
    model = case.model()
    chosen = [1, 2, 5]
    total = split(model).head.out_features
    by_index = case.adapter(model, classes=chosen)
    by_mask = case.adapter(model, classes=torch.tensor([index in chosen for index in range(total)]))
    for seed in range(2):
        logits = by_index(images(6, seed))
        assert logits.shape == (6, 3)
        assert torch.equal(logits, by_mask(images(6, seed))), "indices and mask differ"
    assert by_index(images(4, seed=9), adapt=False).shape == (4, 3)
    wrong: tuple[Any, ...] = ([], [total], [1, 1], [0.5], torch.ones(4, dtype=torch.bool), "abc", ["a"], 3, object())
    for value in wrong:
        with raises(OptionError, match="classes"):
            case.adapter(model, classes=value)


def embeddings_give_what_images_give(case: Case) -> None:
    """A method that needs embeddings alone takes them directly."""
    model = case.model()
    adapter, cached = case.adapter(model), case.adapter(model)
    needs = adapter.declaration.needs
    assert isinstance(adapter, EmbeddingAdapter) == (needs == "embeddings"), f"it declares needs={needs!r}"
    if not isinstance(adapter, EmbeddingAdapter) or not isinstance(cached, EmbeddingAdapter):
        return
    encoder = split(model).encoder
    for seed in range(3):
        with torch.no_grad():
            embeddings = encoder(images(6, seed))
        answer = adapter(images(6, seed), adapt=seed != 2)
        torch.testing.assert_close(cached.predict_embeddings(embeddings, adapt=seed != 2), answer)
    assert cached.predict_embeddings(embeddings[:0]).shape == (0, adapter.num_classes)
    before = cached.state_dict()
    wrong: tuple[Any, ...] = (embeddings[:, 1:], embeddings.long(), embeddings[0], embeddings.numpy(), None, [1.0])
    for value in wrong:
        with raises(InputError, match="embeddings of this model are a floating point tensor of"):
            cached.predict_embeddings(value)
    with raises(InputError, match="the embeddings are torch.float64, the model is torch.float32"):
        cached.predict_embeddings(embeddings.double())
    assert same(before, cached.state_dict()), "wrong embeddings left traces"
    with torch.autocast("cpu"):
        assert cached.predict_embeddings(embeddings.bfloat16()).shape == (6, adapter.num_classes)
    cached.detach()
    with raises(NeottaError, match="detached"):
        cached.predict_embeddings(embeddings)


def inference_mode_outside_does_not_matter(case: Case) -> None:
    """The caller may be in inference mode."""
    inside, outside = case.adapter(), case.adapter()
    for seed in range(2):
        with torch.inference_mode():
            answer = inside(images(6, seed))
        assert torch.equal(answer, outside(images(6, seed))), "in inference mode the answer differs"


def all_randomness_comes_from_the_seed(case: Case) -> None:
    """Global generators change no answer, and are left as they are; `random` declares an option `seed`."""
    answers = []
    for seed in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            before = torch.random.get_rng_state()
            adapter = case.adapter(seed=7) if find(case.method).declaration.random else case.adapter()
            answers.append([adapter(images(6, batch)) for batch in range(2)])
            assert torch.equal(before, torch.random.get_rng_state()), "it draws from torch's global generator"
    same_answers = all(torch.equal(one, other) for one, other in zip(*answers, strict=True))
    assert same_answers, "with the same seed the answers differ"


def the_declaration_is_true(case: Case) -> None:
    """Forward passes and gradients are those declared."""
    model = case.model()
    adapter = case.adapter(model, **case.most_passes)
    tracked: list[bool] = []
    with split(model).head.register_forward_pre_hook(lambda module, args: tracked.append(args[0].requires_grad)):
        adapter(images(6))
    assert len(tracked) == adapter.forward_passes, f"{len(tracked)} forward passes, not {adapter.forward_passes}"
    if not case.options:
        declared = adapter.declaration.forward_passes
        assert declared == len(tracked), f"{declared} forward passes are declared, {len(tracked)} were made"
    gradients = adapter.declaration.gradients
    assert any(tracked) == gradients, f"gradients={gradients} is declared, which is not so"


def wrong_images_are_named(case: Case) -> None:
    """Shapes, dtypes and types that cannot be used raise InputError."""
    adapter = case.adapter()
    before = adapter.state_dict()
    wrong: tuple[Any, ...] = (images(2)[0], images(2).to(torch.uint8), [1, 2], images(2).double())
    for value in wrong:
        with raises(InputError):
            adapter(value)
    assert same(before, adapter.state_dict()), "wrong images left traces"


def a_head_that_was_exchanged_is_noticed(case: Case) -> None:
    """The model must not change behind the adapter's back."""
    model = case.model()
    adapter = case.adapter(model)
    parent, _, name = adapter.head_name.rpartition(".")
    owner, width = model.get_submodule(parent), adapter.head.in_features
    owner._modules[name] = copy.deepcopy(adapter.head)
    for what in ("exchanged", "removed"):
        with raises(ModelChangedError, match=what):
            adapter(images(4))
        if isinstance(adapter, EmbeddingAdapter):
            with raises(ModelChangedError, match=what):
                adapter.predict_embeddings(torch.zeros(2, width))
        owner._modules.pop(name, None)


def a_model_that_was_converted_is_noticed_or_followed(case: Case) -> None:
    """A method with gradients rejects a model of another dtype, any other follows it."""
    for dtype in (torch.float64, torch.bfloat16):
        model = case.model()
        adapter = case.adapter(model)
        adapter(images(4))
        model.to(dtype)
        if adapter.declaration.backprop_free:
            assert adapter(images(4, dtype=dtype)).dtype == dtype
            continue
        for batch in (images(4), images(4, dtype=dtype)):
            with raises(ModelChangedError, match=f"the model is now {dtype} .* make a new adapter"):
                adapter(batch)


def wrong_options_are_named(case: Case) -> None:
    """Unknown options and presets raise OptionError; every method has the presets "paper" and "original"."""
    with raises(OptionError, match="has no option 'nonsense'"):
        case.adapter(nonsense=1)
    with raises(OptionError, match="has no preset 'mine': it has paper, original"):
        case.adapter(preset="mine")
    kind = type(case.adapter())
    paper, original = (case.adapter(preset=preset).options for preset in ("paper", "original"))
    changed = {**kind.Options.presets.get("original", {}), **case.options}
    for name, value in paper.given().items():
        wanted = changed.get(name, value)
        assert isinstance(value, torch.Tensor) or getattr(original, name) == wanted, f"preset 'original': {name}"


CHECKS = (
    logits_have_the_right_shape_and_no_graph,
    predicting_changes_nothing,
    reset_is_exact,
    the_model_is_never_touched,
    a_failure_in_the_middle_leaves_the_model_whole,
    a_state_continues_exactly,
    states_of_others_are_rejected,
    a_batch_that_is_not_finite_never_enters_the_state,
    dtypes_are_kept,
    classes_are_kept_before_anything_else,
    embeddings_give_what_images_give,
    inference_mode_outside_does_not_matter,
    all_randomness_comes_from_the_seed,
    the_declaration_is_true,
    wrong_images_are_named,
    a_head_that_was_exchanged_is_noticed,
    a_model_that_was_converted_is_noticed_or_followed,
    wrong_options_are_named,
)
"""The checks of the contract, in the order in which they run."""
