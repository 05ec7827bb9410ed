"""`neotta.reference`: re-centering towards clean data instead of the origin."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    OptionError,
    StateFileError,
    StateMismatchError,
    UnsupportedModelError,
)

CLASSES, SIZE = 5, 6


def network(seed=0):
    """A model whose embeddings are all positive, so that their mean is far from the origin."""
    torch.manual_seed(seed)
    pool = [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    model = nn.Sequential(*pool, nn.Linear(12, SIZE), nn.ReLU(), nn.Linear(SIZE, CLASSES)).eval()
    with torch.no_grad():
        model[2].bias.fill_(1.0)
        model[4].weight.mul_(4.0)
    return model


def pictures(count=200, seed=1):
    return torch.randn(count, 3, 2, 2, generator=torch.Generator().manual_seed(seed))


def answers(model, images, size=16):
    with torch.inference_mode():
        return torch.cat([model(batch) for batch in images.split(size)])


def test_the_mean_of_clean_data_is_the_new_origin():
    model, images = network(), pictures()
    plain = answers(model, images, 200)
    known = neotta.reference(model, images)
    neotta.adapt(model, "neo", reference=known)
    torch.testing.assert_close(answers(model, images, 200), plain, rtol=1e-4, atol=1e-4)
    neotta.restore(model)
    neotta.adapt(model, "neo")
    assert (answers(model, images, 200) - plain).abs().max() > 0.1, "without it, the mean itself is subtracted"


def test_neo_stream_finds_no_shift_in_the_clean_data():
    """Every class has its own height and its own neighbours, and one class is rare."""
    random = np.random.default_rng(0)
    labels = random.choice(CLASSES, 600, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    means = 9 * np.eye(CLASSES) * np.array([1.0, 0.8, 1.2, 0.9, 1.1])[:, None] + random.normal(size=(CLASSES, CLASSES))
    logits = torch.from_numpy(means[labels] + random.normal(size=(600, CLASSES))).float()
    model = nn.Sequential(nn.Linear(CLASSES, CLASSES))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(CLASSES))
        model[0].bias.zero_()
    shifts = {}
    for name, known in (("without", None), ("with", neotta.reference(model, logits))):
        adapted = neotta.adapt(copy.deepcopy(model), "neo-stream", reference=known)
        answers(adapted, logits)
        shifts[name] = float(neotta.head(adapted).offset().norm())
    assert shifts["with"] < 0.2 < 0.5 < shifts["without"]


def shifted(change):
    """The vector that NEO subtracts if the embeddings change, and the mean of the clean embeddings."""
    model, images = network(), pictures(400)
    known = neotta.reference(model, images)
    model[3].register_forward_hook(lambda module, args, output: change(output))
    model = neotta.adapt(model, "neo", reference=known)
    answers(model, images, 400)
    mean = torch.from_numpy(known.heads["4"].embedding).float()
    return neotta.head(model).offset().float(), mean


def rare_classes():
    """A model with ten samples of one class to one of another, and clean data of it."""
    random = np.random.default_rng(3)
    labels = random.choice(CLASSES, 400, p=[0.8, 0.1, 0.05, 0.03, 0.02])
    logits = torch.from_numpy(6 * np.eye(CLASSES)[labels] + random.normal(size=(400, CLASSES))).float()
    model = nn.Sequential(nn.Linear(CLASSES, CLASSES)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(CLASSES))
        model[0].bias.zero_()
    return model, logits


@pytest.mark.parametrize("streams", [False, True])
def test_the_first_answer_is_the_plain_one_with_rare_classes_too(streams):
    """Before the first sample nothing is known of the labels but how often each is expected."""
    model, logits = rare_classes()
    plain = answers(model, logits[:1])
    neotta.adapt(model, reference=neotta.reference(model, logits), streams=streams)
    with neotta.streams(["new"]) if streams else contextlib.nullcontext():
        with neotta.paused(model):
            torch.testing.assert_close(answers(model, logits[:1]), plain, rtol=0, atol=1e-5)
        torch.testing.assert_close(answers(model, logits[:1]), plain, rtol=0, atol=1e-5)


def test_a_shift_is_found_from_the_new_origin():
    _, mean = shifted(lambda output: output)
    shift = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    shift -= (shift @ mean) / (mean @ mean) * mean
    found, _ = shifted(lambda output: output + shift + 0.1 * mean)
    torch.testing.assert_close(found, shift + 0.1 * mean, rtol=1e-3, atol=1e-3)


def test_embeddings_that_shrink_are_not_shifted():
    found, mean = shifted(lambda output: 0.3 * output)
    assert found.norm() < 1e-4 * mean.norm()


@pytest.mark.parametrize("method", ["neo", "neo-continual", "neo-mse", "neo-stream"])
def test_streams_and_one_stream_agree(method):
    images = pictures(96)
    known = neotta.reference(network(), pictures())
    alone = neotta.adapt(network(), method, reference=known)
    table = neotta.adapt(network(), method, reference=known, streams=True)
    for batch in images.split(8):
        with neotta.streams(["a"] * 8):
            many = answers(table, batch, 8)
        torch.testing.assert_close(many, answers(alone, batch, 8), rtol=1e-4, atol=1e-5)
    folded = neotta.fold(copy.deepcopy(alone))
    neotta.head(alone).freeze()
    if method != "neo-stream":  # whose label prior cannot be folded
        torch.testing.assert_close(answers(folded, images), answers(alone, images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("method", ["neo", "neo-stream"])
def test_a_state_carries_its_reference(tmp_path, method, streams):
    images, path = pictures(64), tmp_path / "state.safetensors"
    model = neotta.adapt(network(), method, reference=neotta.reference(network(), pictures()), streams=streams)
    with neotta.streams([number % 3 for number in range(16)]):
        answers(model, images[:32])
        neotta.save(model, path)
        other = network()
        neotta.load(other, path)
        assert torch.equal(answers(other, images[32:]), answers(model, images[32:]))
    with pytest.raises(StateMismatchError, match="another reference"):
        neotta.load(neotta.adapt(network(), method, streams=streams), path)
    both = neotta.merge([path, path])
    third = network()
    neotta.load(third, both)
    assert neotta.head(third).count == 64
    neotta.load(network(seed=4), path, strict=False)


def test_merging_derives_the_shift_with_the_reference():
    known, images = neotta.reference(network(), pictures()), pictures(128) + 1
    models = [neotta.adapt(network(), reference=known, gate=0.0) for _ in range(2)]
    for model, part in zip(models, images.split(64), strict=True):
        answers(model, part)
    one, other = (neotta.head(model).streams for model in models)
    merged = network()
    neotta.load(merged, neotta.merge(models))
    blank = one.layout.blank()  # a merge starts with an empty window
    shifts = []
    for rule in (one.rule, one.rule.knowing(None)):
        both = rule.merged(rule.merged(blank, one.state(), one.layout), other.state(), one.layout)
        shifts.append(rule.offset(both)[0])
    torch.testing.assert_close(neotta.head(merged).offset(), shifts[0])
    assert (shifts[0] - shifts[1]).abs().max() > 0.1


def test_a_reference_is_saved_and_loaded(tmp_path):
    model, path = network(), tmp_path / "clean.safetensors"
    known = neotta.reference(model, pictures())
    known.save(path)
    assert neotta.Reference.load(path) == known == neotta.reference(model, path)
    first, second = (neotta.adapt(network(), "neo", reference=each) for each in (known, path))
    assert torch.equal(answers(first, pictures(32)), answers(second, pictures(32)))
    neotta.adapt(first, "neo", reference=path)
    with pytest.raises(AlreadyAdaptedError, match="reference"):
        neotta.adapt(first, "neo")
    assert "200 samples, 5 classes" in repr(known)


def test_a_reference_of_another_model_changes_nothing(tmp_path):
    other = neotta.reference(network(seed=5), pictures())
    model = network()
    plain = answers(model, pictures(8))
    for given_, match in ((other, "another model"), (tmp_path / "none.safetensors", "no state file"), (3, "expected")):
        with pytest.raises((StateMismatchError, StateFileError, OptionError), match=match):
            neotta.adapt(model, "neo", reference=given_)
        assert torch.equal(answers(model, pictures(8)), plain)
        assert not any("neotta" in type(module).__module__ for module in model.modules())
    neotta.save(neotta.adapt(model, "neo"), tmp_path / "state.safetensors")
    with pytest.raises(StateMismatchError, match="is not a reference"):
        neotta.reference(model, tmp_path / "state.safetensors")
    neotta.reference(model, pictures()).save(tmp_path / "reference.safetensors")
    with pytest.raises(StateMismatchError, match="contains a reference, not a state"):
        neotta.load(model, tmp_path / "reference.safetensors")


def test_what_images_may_be():
    model, images = network(), pictures()
    wanted = neotta.reference(model, images)
    pairs = torch.utils.data.TensorDataset(images, torch.zeros(200))
    loader = torch.utils.data.DataLoader(pairs, batch_size=50)
    for same in (loader, [{"pixel_values": images}], images.split(30)):
        found = neotta.reference(model, same)
        np.testing.assert_allclose(found.heads["4"].origin, wanted.heads["4"].origin, rtol=1e-5, atol=1e-6)
    for wrong in (images[:0], 3, [3], images[0, 0, 0]):
        with pytest.raises(InputError):
            neotta.reference(model, wrong)
    with pytest.warns(RuntimeWarning, match="rough"):
        neotta.reference(model, images[:10])
    with pytest.warns(RuntimeWarning, match="1 clean samples contain NaN"):
        neotta.reference(model, torch.cat([images, images[:1] * float("nan")]))


def test_the_head_is_found_with_the_images_themselves():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, SIZE), nn.ReLU(), nn.Linear(SIZE, CLASSES)).eval()
    assert list(neotta.reference(model, pictures()).heads) == ["3"]


def test_measuring_an_adapted_model_changes_nothing_and_sees_the_plain_model():
    model = neotta.adapt(network(), "neo")
    answers(model, pictures(32))
    before = neotta.head(model).offset()
    assert neotta.reference(model, pictures()) == neotta.reference(network(), pictures())
    assert torch.equal(neotta.head(model).offset(), before)
    assert neotta.head(model).adapting


def test_measuring_a_model_with_streams_needs_no_stream_ids():
    model = neotta.adapt(network(), "neo", streams=True)
    assert neotta.reference(model, pictures()) == neotta.reference(network(), pictures())
    assert neotta.head(model).count == 0


def test_neo_bn_takes_no_reference():
    with pytest.raises(OptionError, match="neo-bn"):
        neotta.adapt(network(), "neo-bn", reference=neotta.reference(network(), pictures()))


def test_multi_label_heads_are_refused_without_a_reference():
    from types import SimpleNamespace

    model = network()
    model.config = SimpleNamespace(problem_type="multi_label_classification")
    known = neotta.reference(model, pictures())
    for method, reference in (("neo", None), ("neo-stream", None), ("neo-stream", known)):
        with pytest.raises(UnsupportedModelError, match="multi-label"):
            neotta.adapt(model, method, reference=reference)
    neotta.adapt(model, "neo", reference=known)
    single = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 1))
    with pytest.raises(UnsupportedModelError, match="two outputs"):
        neotta.adapt(single, "neo")
