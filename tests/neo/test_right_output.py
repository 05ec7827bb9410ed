"""The right output or none: where `at="logits"` finds the logits, and what is rejected there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import HeadNotFoundError, InputError, UnsupportedModelError


class Ends(nn.Module):
    """A small network that returns anything, made from its embeddings and its linear layer."""

    def __init__(self, end, bias=True):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(8, 5, bias=bias)
        self.end = end

    def forward(self, images):
        return self.end(self.body(images), self.fc)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("end", [lambda h, fc: (h, fc(h)), lambda h, fc: [h, fc(h)]])
def test_features_before_the_logits_are_not_re_centered(end, bias, images):
    model = Ends(end, bias).eval()
    with pytest.raises(HeadNotFoundError, match=r"'fc' is not the first.*head='fc'"):
        neotta.adapt(model, at="logits")
    assert list(neotta.heads(neotta.adapt(model))) == ["fc"]


def test_features_after_the_logits_stay_as_they_are(images):
    model = Ends(lambda h, fc: (fc(h), h)).eval()
    with torch.no_grad():
        features = model(images)[1]
        neotta.adapt(model, "neo", at="logits")
        assert torch.equal(model(images)[1], features)


@pytest.mark.parametrize("end", [lambda h, fc: fc(h).mul_(3), lambda h, fc: (3 * fc(h), h)])
def test_scaled_logits_are_re_centered(end, images):
    model = neotta.adapt(Ends(end).eval(), "neo", at="logits")
    with torch.no_grad():
        model(images)
    assert neotta.head(model).count == len(images)


def test_a_dict_without_logits_is_refused_before_the_first_call(images):
    model = Ends(lambda h, fc: {"features": h, "scores": fc(h)}).eval()
    with pytest.raises(HeadNotFoundError, match=r"'features' and 'scores'.*'logits'"):
        neotta.adapt(model, at="logits")
    with pytest.raises(HeadNotFoundError, match="'logits'"):
        neotta.reference(model, images, at="logits")
    assert list(neotta.heads(neotta.adapt(model))) == ["fc"]


def test_probabilities_are_not_re_centered(images):
    softmax = Ends(lambda h, fc: fc(h).softmax(-1)).eval()
    with pytest.raises(UnsupportedModelError, match="probabilities"):
        neotta.adapt(softmax, at="logits")
    assert list(neotta.heads(neotta.adapt(softmax))) == ["fc"]


@pytest.mark.parametrize("at", ["head", "logits"])
def test_independent_tags_are_refused(at):
    model = Ends(lambda h, fc: fc(h).sigmoid()).eval()
    with pytest.raises(UnsupportedModelError, match="sigmoid of the layer 'fc'"):
        neotta.adapt(model, at=at)


def test_a_layer_called_for_two_views_of_each_image_is_re_centered_at_the_logits(images):
    class Views(Ends):
        def forward(self, images):
            return (super().forward(images) + super().forward(images.flip(3))) / 2

    model = Views(lambda h, fc: fc(h)).eval()
    with pytest.raises(HeadNotFoundError, match=r"called 2 times.*at='logits'"):
        neotta.adapt(model)
    neotta.adapt(model, at="logits")
    with torch.no_grad(), neotta.rows([1.0] * len(images)):
        model(images)
    assert neotta.head(model).count == len(images)


def test_an_example_of_another_kind():
    for at in ("head", "logits"):
        with pytest.raises(InputError, match="example must be a tensor, or a dict of tensors by name, got list"):
            neotta.adapt(Ends(lambda h, fc: fc(h)), at=at, example=[torch.zeros(3, 32, 32)])


def test_pixels_are_rejected():
    class Pixels(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Conv2d(3, 5, 1)

        def forward(self, images):
            return self.last(images)

    for at in ("head", "logits"):
        with pytest.raises(HeadNotFoundError, match=r"expected \(batch, classes\)"):
            neotta.adapt(Pixels().eval(), at=at)


def test_models_of_torchvision_that_have_no_linear_head_are_explained():
    from torchvision.models import squeezenet1_1
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    with pytest.raises(HeadNotFoundError, match=r"'classifier' of SqueezeNet is a Sequential.*at='logits'"):
        neotta.adapt(squeezenet1_1(num_classes=5).eval())
    detector = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5).eval()
    for at in ("head", "logits"):
        with pytest.raises(HeadNotFoundError, match="FasterRCNN finds objects"):
            neotta.adapt(detector, at=at)
