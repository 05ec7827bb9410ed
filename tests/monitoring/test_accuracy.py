"""Accuracy without labels: estimates with intervals that say how far to trust them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.errors import InputError, NotAdaptedError
from neotta.monitoring.accuracy import ERROR, FEWEST, WINDOW, Recent, interval, most, stability


def logits(answers, height=8.0, classes=4):
    return height * np.eye(classes)[np.asarray(answers)]


def test_too_few_samples_give_no_estimate():
    recent = Recent(4)
    recent.add(logits([0, 1, 2, 3] * 8)[: FEWEST - 1])
    assert math.isnan(recent.estimate().value)
    assert str(FEWEST - 1) in recent.estimate().reason
    recent.add(logits([1]))
    assert recent.estimate().by == "confidence"


def test_an_estimate_lies_in_its_interval_and_is_the_product_of_two_measures():
    recent, answers = Recent(4), [0, 1, 2, 3] * 32
    recent.add(logits(answers), np.full(128, 0.5))
    sure = np.exp(8) / (np.exp(8) + 3)
    found = recent.estimate()
    assert (found.by, found.value) == ("product", pytest.approx(0.5 * sure, abs=1e-4))
    assert 0 <= found.low < found.value < found.high <= 1
    assert found.value - found.low > found.high - found.value  # it is too high more often
    assert (found.low, found.high) == interval(found.value, 128, ERROR["product"])


@pytest.mark.parametrize("answers", [[0] * 128, [0] * 90 + [1, 2, 3] * 13, [0, 1] * 64, [0, 1, 2] * 43])
def test_answers_of_one_or_few_classes_leave_the_accuracy_unknown(answers):
    recent = Recent(20)
    recent.add(logits(answers, classes=20), np.full(len(answers), 0.9))
    found = recent.estimate()
    assert all(map(math.isnan, found[:3]))
    assert "collapse" in str(found)


@pytest.mark.parametrize(("classes", "share"), [(2, 0.75), (10, 0.55), (1000, 0.5005)])
def test_a_class_has_most_answers_halfway_from_an_even_share_to_all(classes, share):
    assert most(classes) == pytest.approx(share)
    few, many = Recent(classes), Recent(classes)
    few.add(np.eye(classes)[np.zeros(FEWEST - 1, int)])
    many.add(np.eye(classes)[np.zeros(FEWEST, int)])
    assert (few.one_answer, many.one_answer) == (False, True)


def test_few_samples_cannot_show_many_classes():
    recent = Recent(1000)
    recent.add(np.eye(1000)[list(range(16)) * 4])  # of 64 answers, an even spread over 16 is many
    assert recent.estimate().by == "confidence"


@pytest.mark.parametrize(("known", "by", "samples"), [(FEWEST - 1, "confidence", 128), (FEWEST, "product", FEWEST)])
def test_the_interval_is_that_of_the_samples_behind_the_estimate(known, by, samples):
    recent = Recent(4)
    recent.add(logits([0, 1, 2, 3] * 32), np.r_[np.full(known, 0.5), np.full(128 - known, np.nan)])
    found = recent.estimate()
    assert (found.by, (found.low, found.high)) == (by, interval(found.value, samples, ERROR[by]))


def test_only_the_last_samples_count():
    recent = Recent(4)
    recent.add(logits([0, 1, 2, 3] * 64), np.zeros(256))
    recent.add(logits([0, 1, 2, 3] * 64)[: WINDOW // 2], np.ones(WINDOW // 2))
    assert recent.estimate().value == pytest.approx(0.5, abs=0.01)
    recent.add(logits([0, 1, 2, 3] * 300), np.arange(1200) >= 1200 - WINDOW)  # more than the window at once
    assert recent.estimate().value > 0.99
    assert recent.seen == 256 + 128 + 1200


def test_a_sure_head_is_stable_and_a_torn_one_is_not():
    head = torch.nn.Linear(64, 4, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(4).repeat_interleave(16, 1))
    sure = torch.eye(4).repeat_interleave(16, 1)
    torn = torch.ones(4, 64) + 0.01 * sure
    found = [stability(head, rows, head(rows).detach(), head(rows).detach()) for rows in (sure, torn)]
    assert (found[0] == 1).all()
    assert found[1].mean() < 0.8
    again = stability(head, torn, head(torn).detach(), head(torn).detach())
    assert (again == found[1]).all()  # the masks are always the same


def test_stability_counts_the_masks_that_leave_an_adapted_answer_as_it_is():
    generator = torch.Generator().manual_seed(1)
    head, rows = torch.nn.Linear(20, 5), torch.randn(30, 20, generator=generator)
    offset = torch.randn(30, 5, generator=generator)
    with torch.no_grad():
        plain = head(rows)
        found = stability(head, rows, plain, plain + offset)
        wanted = np.zeros(30)
        for mask in torch.rand(8, 20, generator=torch.Generator().manual_seed(0)) >= 0.4:
            answers = (head(rows * mask / 0.6) + offset).argmax(1)
            wanted += (answers == (plain + offset).argmax(1)).numpy() / 8
    np.testing.assert_allclose(found, wanted)
    assert 0.1 < wanted.mean() < 0.9


def test_intervals_shrink_with_samples_down_to_the_error_of_the_estimate():
    few, many = (interval(0.5, samples, (0.1, 0.1)) for samples in (32, 10**6))
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
    assert many == (pytest.approx(0.4, abs=1e-3), pytest.approx(0.6, abs=1e-3))
    assert interval(1.0, 32, (0.1, 0.1))[1] == 1.0
    assert interval(1.0, 64, (0.0, 0.0)) == (pytest.approx(1 - 1.645 * 0.1 / 8), 1.0)  # surely right is never known
    assert interval(0.5, 100, (0.1, 0.0))[0] == pytest.approx(0.5 - math.hypot(0.1, 0.08225))
    assert interval(0.5, 100, (0.0, 0.0)) == (pytest.approx(0.418, abs=1e-3), pytest.approx(0.582, abs=1e-3))  # 90 %


# ---- of a model


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4, bias=False)).eval()
    return model if not options else neotta.adapt(model, head="1", **options)


IMAGES = torch.randn(300, 3, 2, 2, generator=torch.Generator().manual_seed(0))


def test_models_and_adapters_have_the_same_accuracy_and_learn_nothing_from_it():
    model = network(method="neo")
    adapter = neotta.create("neo", network(), head="1")
    model(IMAGES), adapter(IMAGES)
    before = neotta.head(model).streams.state()
    found = neotta.accuracy(model, IMAGES)
    assert found == neotta.accuracy(adapter, IMAGES, batch_size=50)
    assert found.by == "product"
    assert torch.equal(before, neotta.head(model).streams.state())
    assert torch.equal(before, neotta.head(adapter).streams.state())


def test_an_adapter_of_some_classes_is_estimated_among_them():
    some = neotta.create("neo-stream", network(), head="1", classes=[0, 2, 3])
    some(IMAGES)
    model = network()
    model[1] = nn.Linear(12, 3, bias=False)
    with torch.no_grad():
        model[1].weight.copy_(network()[1].weight[[0, 2, 3]])
    alone = neotta.create("neo-stream", model, head="1")
    alone(IMAGES)
    assert neotta.accuracy(some, IMAGES) == neotta.accuracy(alone, IMAGES)


def test_without_the_embeddings_it_is_the_confidence():
    at_logits = neotta.adapt(network(), "neo", at="logits")
    found = neotta.accuracy(at_logits, IMAGES)
    with neotta.paused(at_logits), torch.no_grad():
        assert found.value == pytest.approx(float(at_logits(IMAGES[-256:]).softmax(1).amax(1).mean()), abs=1e-6)
    assert found.by == "confidence"
    tent = neotta.create("tent", nn.Sequential(nn.BatchNorm2d(3), *network()))
    assert neotta.accuracy(tent, IMAGES).by == "confidence"


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, images):
        rows = images.flatten(1)
        return self.one(rows) + self.other(rows)


def test_two_heads_have_the_confidence():
    adapted = neotta.adapt(Two().eval(), "neo", head=["one", "other"])
    adapted(IMAGES)
    assert neotta.accuracy(adapted, IMAGES).by == "confidence"


def test_an_adapter_answers_in_evaluation_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(12, 4))
    adapter = neotta.create("neo", model.train())
    adapter(IMAGES)
    assert neotta.accuracy(adapter, IMAGES) == neotta.accuracy(adapter, IMAGES)
    assert model.training


def test_only_the_last_images_are_run():
    model, seen = network(method="neo"), []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    neotta.accuracy(model, IMAGES, batch_size=100)
    assert seen == [100, 100, 56]


def test_one_stream_of_many_is_named_as_in_any_call():
    model = network(streams=True)
    with neotta.streams("gate"):
        model(IMAGES)
        assert neotta.accuracy(model, IMAGES).by == "product"
    with pytest.raises(InputError, match="stream"):
        neotta.accuracy(model, IMAGES)


def test_what_has_no_accuracy_is_rejected():
    with pytest.raises(NotAdaptedError):
        neotta.accuracy(network(), IMAGES)
    with pytest.raises(InputError, match="image"):
        neotta.accuracy(network(method="neo"), IMAGES[:0])
