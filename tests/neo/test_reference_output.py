"""References for models whose output is re-centered: `at="logits"`, and cosine classifiers."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.reference_models import CLASSES, WIDTH, network, pictures
from torch import nn

import neotta
from neotta.errors import InputError, StateMismatchError


def answers(model: nn.Module, images: torch.Tensor, stream: str | None = None) -> torch.Tensor:
    parts = []
    for batch in images.split(16):
        with torch.no_grad(), nullcontext() if stream is None else neotta.streams([stream] * len(batch)):
            parts.append(model(batch))
    return torch.cat(parts)


class Temperature(nn.Module):
    """A model whose head is not the last thing it does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.inner(images) / (0.5 + self.temperature)


class Cosine(nn.Module):
    """A cosine classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, WIDTH), nn.ReLU())
        self.head = CosineLayer()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


class CosineLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 12 * nn.functional.normalize(rows, dim=1) @ nn.functional.normalize(self.weight, dim=1).T


@pytest.mark.parametrize("streams", [False, True])
def test_the_output_is_recentered_as_the_head_is(streams):
    """NEO-Stream needs logits only, so both places give the same answers."""
    images = pictures(90, 2, 0.4)
    at_head, at_output = (
        neotta.adapt(network(), reference=neotta.reference(network(), pictures(), at=at), at=at, streams=streams)
        for at in ("head", "logits")
    )
    name = "gate" if streams else None
    wanted, found = answers(at_head, images, name), answers(at_output, images, name)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    assert (answers(neotta.adapt(network(), at="logits"), images) - found).abs().max() > 0.01


class Doubled(nn.Sequential):
    """A Sequential with more to do."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(images)


def test_a_sequential_model_is_re_centered_once():
    """It calls all its children, so the head at its output too."""
    images = pictures(48, 2, 0.4)
    model = neotta.adapt(network(), at="logits")
    torch.testing.assert_close(answers(model, images), answers(neotta.adapt(network()), images), atol=1e-4, rtol=0)
    assert neotta.head(model).count == 48
    torch.testing.assert_close(answers(neotta.restore(model), images), answers(network(), images), atol=0, rtol=0)
    doubled = neotta.adapt(Doubled(*network()), "neo", at="logits")
    wanted = 2 * answers(neotta.adapt(network(), "neo"), images)
    (bias,) = [2 * network()[3].bias]  # that of the doubled logits is not known, so it is subtracted too
    torch.testing.assert_close(answers(doubled, images) + bias, wanted, atol=1e-4, rtol=0)
    assert neotta.head(doubled).count == 48


def test_the_mean_of_clean_logits_is_the_new_origin_of_neo():
    """Without a shift, NEO with a reference of the same images returns the plain answers."""
    images = pictures()
    model = neotta.adapt(network(), "neo", at="logits", reference=neotta.reference(network(), images, at="logits"))
    plain = answers(network(), images)
    with torch.no_grad():
        torch.testing.assert_close(model(images), plain, atol=1e-4, rtol=0)
        other = neotta.adapt(network(), "neo", at="logits")(images)
    assert (other - plain).abs().max() > 0.1


def test_cosine_classifiers_have_a_reference():
    known = neotta.reference(Cosine(), pictures())
    model = neotta.adapt(Cosine(), reference=known)
    images = pictures(90, 2, 0.4)
    found = answers(model, images)
    assert (answers(neotta.adapt(Cosine()), images) - found).abs().max() > 0.01
    logits = answers(Cosine(), pictures()).double()
    centred = logits - logits.mean(1, keepdim=True)
    (head,) = known.heads.values()
    np.testing.assert_allclose(head.origin, centred.mean(0), atol=1e-5)


def test_a_state_carries_the_reference_of_an_output(tmp_path):
    known = neotta.reference(Temperature(), pictures(), at="logits")
    known.save(tmp_path / "reference.safetensors")
    assert neotta.reference(Temperature(), tmp_path / "reference.safetensors", at="logits") == known
    model = neotta.adapt(Temperature(), at="logits", reference=tmp_path / "reference.safetensors")
    images = pictures(90, 2, 0.4)
    answers(model, images)
    neotta.save(model, tmp_path / "state.safetensors")
    fresh = Temperature()
    neotta.load(fresh, tmp_path / "state.safetensors")
    torch.testing.assert_close(answers(fresh, images), answers(model, images), atol=0, rtol=0)
    tuned = Temperature()
    with torch.no_grad():
        tuned.inner[3].bias += 0.01
    with pytest.raises(StateMismatchError):
        neotta.load(tuned, tmp_path / "state.safetensors")
    neotta.load(tuned, tmp_path / "state.safetensors", strict=False)
    assert neotta.head(tuned).count == 90


def test_a_reference_of_another_place_or_model_changes_nothing():
    model, images = network(), pictures()
    at_head, at_output = neotta.reference(model, images), neotta.reference(model, images, at="logits")
    for given, where in ((at_head, {"at": "logits"}), (at_output, {})):
        with pytest.raises(StateMismatchError, match="measure"):
            neotta.adapt(model, reference=given, **where)
    with pytest.raises(StateMismatchError, match="another model"):
        neotta.adapt(network(5), at="logits", reference=at_output)
    neotta.adapt(model, at="logits", reference=at_output)
    with pytest.raises(InputError, match="restore"):
        neotta.reference(model, images, at="logits")


def test_streams_at_the_output_are_resumed_from_a_folder(tmp_path):
    for seed in (1, 2):
        torch.manual_seed(seed)  # nothing of the state may depend on random numbers
        model = Temperature()
        neotta.adapt(model, at="logits", streams=True, folder=tmp_path, capacity=1)
        answers(model, pictures(32), "gate")
        answers(model, pictures(32), "yard")
    assert neotta.head(model).streams.counts()["gate"] == 64
