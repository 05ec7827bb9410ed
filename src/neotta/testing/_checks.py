"""The checks of the contract (see `neotta.adapters.base`), one function each."""

from __future__ import annotations

import copy
from typing import Any

import torch

from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.registry import find
from neotta.errors import (
    InputError,
    ModelChangedError,
    NeottaError,
    OptionError,
    UnsupportedModelError,
)
from neotta.neo.split import split
from neotta.testing._case import Case, images, raises, same
from neotta.testing._state_checks import (
    a_batch_that_is_not_finite_never_enters_the_state,
    a_failure_in_the_middle_leaves_the_model_whole,
    a_state_continues_exactly,
    predicting_changes_nothing,
    reset_is_exact,
    states_of_others_are_refused,
    the_model_is_never_touched,
)


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


def dtypes_are_kept(case: Case) -> None:
    """Answers have the model's dtype, statistics at least float32; methods with gradients refuse half precision."""
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
    """`classes=` takes indices or a mask, and refuses anything else."""
    model = case.model()
    kept = [1, 2, 5]
    total = split(model).head.out_features
    by_index = case.adapter(model, classes=kept)
    by_mask = case.adapter(model, classes=torch.tensor([index in kept for index in range(total)]))
    for seed in range(2):
        logits = by_index(images(6, seed))
        assert logits.shape == (6, 3)
        assert torch.equal(logits, by_mask(images(6, seed))), "indices and mask differ"
    assert by_index(images(4, seed=9), adapt=False).shape == (4, 3)
    wrong: tuple[Any, ...] = ([], [total], [1, 1], [0.5], torch.ones(4, dtype=torch.bool), "abc", ["a"], 3, object())
    for given in wrong:
        with raises(OptionError, match="classes"):
            case.adapter(model, classes=given)


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
    for given in wrong:
        with raises(InputError, match="embeddings of this model are a floating point tensor of"):
            cached.predict_embeddings(given)
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
    hook = split(model).head.register_forward_pre_hook(lambda module, args: tracked.append(args[0].requires_grad))
    adapter(images(6))
    hook.remove()
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
    for given in wrong:
        with raises(InputError):
            adapter(given)
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
    """A method with gradients refuses a model of another dtype, any other follows it."""
    for dtype in (torch.float64, torch.bfloat16):
        model = case.model()
        adapter = case.adapter(model)
        adapter(images(4))
        model.to(dtype)
        if adapter.declaration.backprop_free:
            assert adapter(images(4, dtype=dtype)).dtype == dtype
            continue
        for given in (images(4), images(4, dtype=dtype)):
            with raises(ModelChangedError, match=f"the model is now {dtype} .* make a new adapter"):
                adapter(given)


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
    states_of_others_are_refused,
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
