"""CoTTA: who learns from whom, in which order, and what is stored."""

from __future__ import annotations

import math

import pytest
import torch
from golden_replay.replay import golden
from support.reoptioned import with_options

import neotta
from neotta.errors import InputError, OptionError, StateMismatchError


def network(name="cnn", dtype=torch.float32):
    return golden().models.load_model(golden().index, golden().folder, name, dtype)


def images(start=0, count=8, dtype=torch.float32):
    return golden().data["images"][start : start + count].to(dtype)


def cotta(model=None, **options):
    return neotta.create("cotta", network() if model is None else model, **options)


def unsure(**options):
    """An adapter that always asks about augmented views."""
    return cotta(**{"anchor_threshold": 1.1, "num_augmentations": 3, **options})


def count_forwards(adapter):
    calls = []
    adapter.head.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_forward_passes_are_as_declared():
    assert cotta().forward_passes == neotta.methods()["cotta"].declaration.forward_passes == 34
    adapter = unsure(num_augmentations=5)
    calls = count_forwards(adapter)
    adapter(images())
    assert len(calls) == adapter.forward_passes == 7, "the teacher is not asked about the images themselves"


def test_a_confident_anchor_needs_no_views():
    def never(batch):
        raise AssertionError("no view was asked for")

    adapter = cotta(augmentation=never, anchor_threshold=0.0)
    calls = count_forwards(adapter)
    adapter(images())
    assert len(calls) == 3


def test_three_networks_share_what_is_never_trained():
    model = network("vit")
    adapter = cotta(model, optimizer="sgd")
    trained = {name for name, _ in model.named_parameters() if name.rpartition(".")[2] in ("weight", "bias")}
    assert set(adapter.params) == set(adapter.teacher) == trained
    assert "cls_token" not in trained
    size = sum(parameter.numel() for name, parameter in model.named_parameters() if name in trained)
    state = adapter.state_dict()
    generator = state.pop("generator")
    assert sum(tensor.numel() for tensor in state.values()) == 3 * size, "student, teacher, momentum; no anchor"
    assert generator.numel() < 10_000


def test_order_student_then_teacher_then_restore():
    """The teacher follows the student as it was before some of it was restored."""
    adapter = cotta(model := network(dtype=torch.float64), ema=0.9, restore_probability=1.0, lr=0.1)
    source = {name: model.get_parameter(name).detach().clone() for name in adapter.params}
    answer = adapter(images(dtype=torch.float64))
    for name, tensor in adapter.params.items():
        torch.testing.assert_close(tensor.detach(), source[name], msg="all of it was restored")
    assert any(not torch.equal(tensor, source[name]) for name, tensor in adapter.teacher.items())
    plain = cotta(network(dtype=torch.float64), ema=0.9, restore_probability=0.0, lr=0.1)
    torch.testing.assert_close(plain(images(dtype=torch.float64)), answer)
    for name, tensor in plain.params.items():
        torch.testing.assert_close(adapter.teacher[name], 0.9 * source[name] + 0.1 * tensor.detach())


def test_restored_share_is_binomial():
    probability, adapter = 0.05, cotta(lr=0.5, restore_probability=0.05)
    source = {name: adapter.model.get_parameter(name) for name in adapter.params}
    before = {}
    restore = adapter._restore

    def remember():
        before.update({name: tensor.detach().clone() for name, tensor in adapter.params.items()})
        restore()

    adapter._restore = remember
    adapter(images())
    moved = restored = 0
    for name, tensor in adapter.params.items():
        changed = before[name] != source[name]
        moved += int(changed.sum())
        restored += int((changed & (tensor == source[name])).sum())
        assert torch.equal(tensor[~changed], source[name][~changed])
    assert moved > 10_000
    deviation = math.sqrt(moved * probability * (1 - probability))
    assert abs(restored - moved * probability) < 5 * deviation


@pytest.mark.parametrize("name", ["cnn", "hf"])
@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "eval_with": "teacher"}])
def test_a_saved_state_goes_on_exactly(tmp_path, name, options):
    first = unsure(model=network(name), lr=0.01, **options)
    for start in (0, 8):
        first(images(start))
    first.save(tmp_path / "state.safetensors")
    second = unsure(model=network(name), lr=0.01, **options)
    second.load(tmp_path / "state.safetensors")
    for start in (16, 24):
        assert torch.equal(first(images(start)), second(images(start)))
    for key, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[key]), key


def test_reset_starts_again_bit_for_bit():
    model = network()
    untouched = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = unsure(model=model, lr=0.1)
    fresh = adapter.state_dict()
    answers = [adapter(images(start)) for start in (0, 8)]
    adapter.reset()
    for key, tensor in adapter.state_dict().items():
        assert torch.equal(tensor, fresh[key]), key
    for start, answer in zip((0, 8), answers, strict=True):
        assert torch.equal(adapter(images(start)), answer)
    for name, tensor in adapter.detach().state_dict().items():
        assert torch.equal(tensor, untouched[name]), "the model is as it was"


def test_predicting_changes_nothing():
    adapter = unsure(lr=0.1)
    adapter(images())
    before = adapter.state_dict()
    student = adapter(images(8), adapt=False)
    assert all(torch.equal(tensor, before[key]) for key, tensor in adapter.state_dict().items())
    adapter = with_options(adapter, eval_with="teacher")
    assert not torch.equal(adapter(images(8), adapt=False), student)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_batch_leaves_no_trace(bad):
    adapter = unsure(lr=0.1)
    adapter(images())
    before = adapter.state_dict()
    broken = images(8).clone()
    broken[2, 0, 0, 0] = bad
    with pytest.warns(RuntimeWarning, match="not adapted to"):
        assert adapter(broken).shape == (8, 10)
    assert adapter.skipped == 8
    for key, tensor in adapter.state_dict().items():
        assert torch.equal(tensor, before[key]), key


def test_views_are_made_in_the_pixel_domain():
    seen = []

    def spy(batch):
        seen.append(batch)
        return batch

    adapter = unsure(augmentation=spy, mean=(0.5, 0.4, 0.3), std=[0.5, 0.25, 0.2])
    adapter(images())
    std, mean = torch.tensor([0.5, 0.25, 0.2]), torch.tensor([0.5, 0.4, 0.3])
    torch.testing.assert_close(seen[0], images() * std.reshape(3, 1, 1) + mean.reshape(3, 1, 1))
    adapter = with_options(adapter, augment_domain="normalised")
    adapter(images())
    assert torch.equal(seen[-1], images())


def test_one_sided_loss_and_presets():
    losses = {loss: cotta(loss=loss) for loss in ("symmetric", "one-sided")}
    student, teacher = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(0)).double()
    one = -(teacher.softmax(1) * student.log_softmax(1)).sum(1).mean()
    other = -(student.softmax(1) * teacher.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(losses["one-sided"]._loss(student, teacher), one)
    torch.testing.assert_close(losses["symmetric"]._loss(student, teacher), (one + other) / 2)
    assert cotta().options.optimizer == "sgd"
    assert cotta(preset="paper-cifar10").options.optimizer == "adam"
    assert cotta(preset="original").options.nesterov
    assert cotta(preset="original-cifar10").options.loss == "one-sided"


def test_a_state_goes_on_with_other_options_of_the_optimiser():
    adapter = cotta(lr=0.1)
    adapter(images())
    momentum = {key: tensor for key, tensor in adapter.state_dict().items() if key.endswith("momentum_buffer")}
    adapter = with_options(adapter, lr=0.0)
    assert all(torch.equal(adapter.state_dict()[key], tensor) for key, tensor in momentum.items())
    before = {name: tensor.detach().clone() for name, tensor in adapter.params.items()}
    adapter = with_options(adapter, restore_probability=0.0)
    adapter(images())
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapter.params.items())


def test_wrong_options_are_refused():
    with pytest.raises(OptionError, match="momentum"):
        cotta(nesterov=True, momentum=0.0)
    with pytest.raises(OptionError, match="std"):
        cotta(std=0.0)
    with pytest.raises(OptionError, match="augmentation"):
        cotta(augmentation="flip")
    for name in ("mean", "std"):
        with pytest.raises(OptionError, match=f"'{name}' of method 'cotta' has 2 numbers, but no layer"):
            cotta(**{name: (0.5, 0.5)})
    with pytest.raises(InputError, match="'mean' has 16 numbers, the images have 3 channels"):
        unsure(mean=[0.5] * 16)(images())  # such layers there are, further up
    adapter = cotta()
    state = adapter.state_dict()
    state["generator"] = torch.zeros_like(state["generator"])
    with pytest.raises(StateMismatchError, match="generator"):
        adapter.load_state_dict(state)
