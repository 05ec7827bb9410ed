"""RoTTA: its memory, its statistics, and when it learns."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_vit import batches, confident_vit

import neotta
import neotta.testing
from neotta.adapters.rotta import Entry, MemoryBank
from neotta.errors import StateMismatchError


def entry(number, label, uncertainty=0.5):
    return Entry(torch.full((3, 2, 2), float(number)), label, uncertainty)


def numbers(bank):
    return [int(image[0, 0, 0]) for image in bank.state()["images"]]


samples = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), max_size=40)


@settings(max_examples=40, deadline=None)
@given(samples=samples, size=st.integers(1, 9))
def test_the_memory_is_bounded_and_balanced(samples, size):
    bank = MemoryBank(size, 4, 1.0, 1.0)
    for number, (label, uncertainty) in enumerate(samples):
        accepted = bank.insert(entry(number, label, uncertainty))
        assert (number in numbers(bank)) == accepted
    content = bank.state()
    assert len(bank) <= size
    assert (content["labels"].diff() >= 0).all(), "class by class"
    assert all(int(count) <= math.ceil(size / 4) for count in content["labels"].bincount())
    assert (content["ages"] >= 1).all()


def test_the_old_and_the_uncertain_are_given_up():
    bank = MemoryBank(2, 1, 0.0, 1.0)
    for number, uncertainty in enumerate((0.9, 0.1)):
        bank.insert(entry(number, 0, uncertainty))
    assert not bank.insert(entry(2, 0, 0.95)), "the worst of all is the new one"
    assert bank.insert(entry(3, 0, 0.5))
    assert numbers(bank) == [1, 3]
    assert bank.state()["ages"].tolist() == [3, 1]
    by_age = MemoryBank(2, 1, 1.0, 0.0)
    for number in range(4):
        assert by_age.insert(entry(number, 0))
    assert numbers(by_age) == [2, 3]


def test_of_equals_the_last_is_given_up():
    bank = MemoryBank(2, 1, 0.0, 1.0)
    for number in range(2):
        bank.insert(entry(number, 0, 0.5))
    bank.insert(entry(2, 0, 0.1))
    assert numbers(bank) == [0, 2]


def test_a_new_class_replaces_one_of_the_largest():
    bank = MemoryBank(4, 2, 1.0, 0.0)
    for number, label in enumerate((0, 0, 1, 1)):
        bank.insert(entry(number, label))
    assert bank.insert(entry(4, 1))
    assert bank.state()["labels"].tolist() == [0, 0, 1, 1]
    assert numbers(bank) == [0, 1, 3, 4]


def rotta(model=None, **options):
    views = {"augmentation": lambda images: images.flip(3), "augment_domain": "normalised"}
    return neotta.create("rotta", confident_vit() if model is None else model, **{**views, **options})


def test_one_update_by_hand():
    model, (images,) = confident_vit(), batches(1, size=5)
    adapter = rotta(model, memory_size=50, update_frequency=5, nu=0.1, optimizer="sgd", lr=0.1, momentum=0.0)
    with torch.no_grad():
        taught = model(images).softmax(1)
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in adapter.params.items()}
    learnt = torch.func.functional_call(model, params, images.flip(3)).log_softmax(1)
    ages = torch.tensor([5.0, 4, 3, 2, 1], dtype=torch.float64) / 50  # the first has aged most
    loss = (-(taught * learnt).sum(1) * (-ages).exp() / (1 + (-ages).exp())).mean()
    grads = torch.autograd.grad(loss, list(params.values()))

    torch.testing.assert_close(adapter(images), model(images).detach())

    for (name, tensor), grad in zip(params.items(), grads, strict=True):
        student = (tensor - 0.1 * grad).detach()
        torch.testing.assert_close(adapter.params[name].detach(), student)
        torch.testing.assert_close(adapter.teacher.params[name], 0.9 * tensor.detach() + 0.1 * student)


def cnn():
    torch.manual_seed(0)
    return neotta.testing.MODELS["batch-norm"]().double().eval()


def test_predictions_do_not_depend_on_the_batch_and_statistics_move_slowly():
    model, (images,) = cnn(), batches(1, size=6)
    adapter = rotta(model, update_frequency=6, memory_size=60, alpha=0.25)
    alone = torch.cat([adapter(image, adapt=False) for image in images.split(1)])
    torch.testing.assert_close(adapter(images), alone)
    norm = adapter.teacher.norms["1"].current
    with torch.no_grad():
        inside = model[0](images)
    torch.testing.assert_close(norm.mean, 0.75 * model[1].running_mean + 0.25 * inside.mean((0, 2, 3)))
    wanted = 0.75 * model[1].running_var + 0.25 * inside.var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(norm.variance, wanted)
    assert not torch.equal(norm.mean, adapter.student.norms["1"].current.mean), "the student sees views"


def test_gradients_flow_through_the_statistics():
    """By finite differences: the loss of the student as a function of one weight of the first norm layer."""
    model, (images,) = cnn(), batches(1, size=6)

    def loss(shift):
        fresh = rotta(model, alpha=0.5)
        with torch.no_grad():
            fresh.params["1.weight"][0] += shift
        answer = fresh._run(fresh.student, images, training=True)
        return answer.log_softmax(1)[:, 0].sum(), fresh.params["1.weight"]

    (grad,) = torch.autograd.grad(*loss(0.0))
    slope = (loss(1e-5)[0] - loss(-1e-5)[0]).detach() / 2e-5
    torch.testing.assert_close(grad[0], slope, rtol=1e-4, atol=1e-7)


def test_it_learns_in_the_middle_of_a_batch():
    adapter, calls = rotta(update_frequency=3), []
    adapter._update = lambda: calls.append(int(adapter.seen))
    for images in batches(2, size=4):
        adapter(images)
    assert calls == [3, 6]


def test_a_damaged_memory_is_refused():
    adapter = rotta(memory_size=4)
    adapter(batches(1)[0])
    state = adapter.state_dict()
    labels, ages = state["memory/labels"], state["memory/ages"]
    for name, wrong in (("labels", labels + 99), ("ages", ages.repeat(2))):
        with pytest.raises(StateMismatchError, match="memory of this state"):
            adapter.load_state_dict({**state, f"memory/{name}": wrong})
    with pytest.raises(StateMismatchError, match="generator"):
        rotta(memory_size=4).load_state_dict({**state, "generator": torch.zeros_like(state["generator"][:-3])})


@pytest.mark.parametrize("kind", ["vit", "batch-norm"])
def test_contract_with_many_updates(kind):
    neotta.testing.check_adapter(
        "rotta",
        models={kind: neotta.testing.MODELS[kind]},
        most_passes={"update_frequency": 6},
        memory_size=5,
        update_frequency=4,
        nu=0.1,
    )
