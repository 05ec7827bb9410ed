"""Small random models show the mechanics; what zero-shot adaptation gains was not measured."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neotta
from neotta.errors import OptionError, UnsupportedModelError

CLASSES = ["cat", "dog", "horse", "ship"]
TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**TOWER, "image_size": 32, "patch_size": 16}
TEXT = {**TOWER, "vocab_size": 300, "max_position_embeddings": 24}


class Bytes:
    """A tokenizer of bytes, called as those of transformers are."""

    def __call__(self, texts, padding, truncation, max_length, return_tensors):
        ids = [[1, *text.encode(), 298][:max_length] for text in texts]
        length = max_length if padding == "max_length" else max(map(len, ids))
        filled = torch.tensor([row + [0] * (length - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids])
        return {"input_ids": filled, "attention_mask": mask}


class Processor:
    tokenizer = Bytes()


def clip():
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig(text_config={**TEXT, "eos_token_id": 298}, vision_config=VISION, projection_dim=12))
    return model


def siglip():
    from transformers import SiglipConfig, SiglipModel

    model = SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION))
    nn.init.constant_(model.logit_scale, 2.0)
    nn.init.constant_(model.logit_bias, -3.0)
    return model


class OpenClip(nn.Module):
    """The interface of open_clip."""

    def __init__(self):
        super().__init__()
        self.visual = nn.Conv2d(3, 12, 16)
        self.words = nn.Embedding(300, 12)
        self.logit_scale = nn.Parameter(torch.tensor(3.0))

    def encode_text(self, tokens):
        return self.words(tokens).mean(1)

    def encode_image(self, images):
        return self.visual(images).mean((2, 3))


def last_letters(texts):
    return torch.tensor([[*text.encode()][-4:] for text in texts])


def made(build):
    torch.manual_seed(0)
    return build().eval()


@pytest.mark.parametrize("build", [clip, siglip])
def test_the_logits_are_those_of_the_model(build, images):
    model = made(build)
    classifier = neotta.zero_shot(model, Processor(), "a photo of a {}", CLASSES)
    padding = "max_length" if build is siglip else True
    tokens = Bytes()([f"a photo of a {name}" for name in CLASSES], padding, True, 24, "pt")
    if build is siglip:
        tokens.pop("attention_mask")
        classifier = neotta.zero_shot(model, lambda *a, **k: {**tokens}, "a photo of a {}", CLASSES)
    with torch.no_grad():
        expected = model(pixel_values=images, **tokens).logits_per_image
        torch.testing.assert_close(classifier(images), expected, rtol=1e-4, atol=1e-4)
    assert classifier.classes == tuple(CLASSES)
    assert (classifier.head.bias is not None) == (build is siglip)


def test_prompts_are_averaged(images):
    model = made(clip)
    templates = ["a photo of a {}", "a drawing of one {}", "{}"]
    alone = [neotta.zero_shot(model, Processor(), template, CLASSES).head.weight for template in templates]
    together = neotta.zero_shot(model, Processor(), templates, CLASSES).head.weight
    mean = F.normalize(sum(F.normalize(rows, dim=1) for rows in alone), dim=1)
    torch.testing.assert_close(together, mean * model.logit_scale.detach().exp(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("build", [clip, siglip, OpenClip])
def test_it_is_an_ordinary_classifier(build, images):
    model = made(build)
    processor = (
        Processor() if build is not OpenClip else lambda texts: torch.tensor([[*text.encode()][-4:] for text in texts])
    )
    classifier = neotta.zero_shot(model, processor, ["a photo of a {}"], CLASSES)
    with torch.no_grad():
        plain = classifier(images)
    encoder, head = neotta.split(classifier)
    assert head is classifier.head
    torch.testing.assert_close(encoder(images).norm(dim=1), torch.ones(6))
    for method in (name for name, kind in neotta.methods().items() if kind.declaration.needs == "embeddings"):
        assert neotta.create(method, classifier)(images).shape == (6, 4)
    names = set(classifier.state_dict())
    assert neotta.adapt(classifier, "neo") is classifier
    with torch.no_grad():
        adapted = classifier(images)
    bias = 0 if classifier.head.bias is None else classifier.head.bias
    torch.testing.assert_close(adapted, plain - plain.mean(0) + bias, rtol=1e-4, atol=1e-4)
    assert set(classifier.state_dict()) == names
    frozen = copy.deepcopy(classifier)
    neotta.head(frozen).freeze()
    with torch.no_grad():
        torch.testing.assert_close(neotta.fold(classifier)(images), frozen(images), rtol=1e-4, atol=1e-4)
        assert torch.equal(neotta.restore(classifier)(images), plain)


def test_the_temperature_stays_and_no_sample_dominates(images):
    classifier = neotta.zero_shot(made(clip), Processor(), "{}", CLASSES)
    encoder, _ = neotta.split(classifier)
    neotta.adapt(classifier, "neo")
    with torch.no_grad():
        classifier(torch.cat([images, 1e4 * images[:1]]))
    centre = neotta.head(classifier).offset()
    assert float(centre.norm()) <= 1 + 1e-6
    assert encoder is not None


def test_what_cannot_be_used():
    model = made(clip)
    for templates in ([], ["a photo"], [3]):
        with pytest.raises(OptionError, match="for the name of a class"):
            neotta.zero_shot(model, Processor(), templates, CLASSES)
    for classes in ([], ["cat"], ["cat", "cat"], "cats", [1, 2]):
        with pytest.raises(OptionError, match="two different names"):
            neotta.zero_shot(model, Processor(), "{}", classes)
    with pytest.raises(UnsupportedModelError, match="does not embed images and texts"):
        neotta.zero_shot(nn.Linear(3, 4), Processor(), "{}", CLASSES)
