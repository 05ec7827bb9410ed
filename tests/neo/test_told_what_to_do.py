"""Models without a head to re-center are told the line that works, and it works."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import AmbiguousHeadError, HeadNotFoundError


def suggested(error, model):
    """Run every line of code in a message that adapts the model."""
    lines = re.findall(r"neotta\.adapt\(model, (?:at|head)=[^()]*\)", str(error.value))
    assert lines
    for line in lines:
        exec(line, {"neotta": neotta, "model": model})
        yield neotta.heads(model)
        neotta.restore(model)


@pytest.mark.parametrize("both", [lambda a, b: (a, b), lambda a, b: {"animal": a, "colour": b}])
def test_two_heads(both, images):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.animal, self.colour = nn.Linear(3, 4), nn.Linear(3, 2)

        def forward(self, images):
            pooled = images.mean(dim=(2, 3))
            return both(self.animal(pooled), self.colour(pooled))

    model = Two().eval()
    with pytest.raises(AmbiguousHeadError) as error:
        neotta.adapt(model)
    for heads in suggested(error, model):
        model(images)
        assert {head.count for head in heads.values()} == {len(images)}


def test_squeezenet(images):
    from torchvision.models import squeezenet1_1

    model = squeezenet1_1(num_classes=5).eval()
    with pytest.raises(HeadNotFoundError) as error:
        neotta.adapt(model)
    counts = []
    for heads in suggested(error, model):
        model(images)
        counts += [(name, head.count) for name, head in heads.items()]
    assert counts == [("neotta_output", 6), ("classifier.1", 6)]


def segmentation():
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    yield lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    sizes = {"hidden_sizes": [8] * 4, "decoder_hidden_size": 8, "depths": [1] * 4, "num_attention_heads": [1] * 4}
    yield SegformerForSemanticSegmentation(SegformerConfig(num_labels=5, **sizes))


@pytest.mark.parametrize("at", ["head", "logits"])
def test_segmentation_is_rejected_without_a_run(at):
    for model in segmentation():
        model.forward = None
        with pytest.raises(HeadNotFoundError, match=r"classifies pixels.*classifiers of whole samples"):
            neotta.adapt(model, at=at)


def clip_models():
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    yield CLIPModel(CLIPConfig(text_config={**sizes, "vocab_size": 40}, vision_config=vision, projection_dim=8))

    class OpenClip(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual, self.logit_scale = nn.Linear(3, 8), nn.Parameter(torch.ones(()))

        def encode_image(self, images):
            return self.visual(images.mean(dim=(2, 3)))

        def encode_text(self, tokens):
            raise NotImplementedError

        def forward(self, images=None, text=None):
            return self.encode_image(images), None, self.logit_scale.exp()

    yield OpenClip()


@pytest.mark.parametrize("at", ["head", "logits"])
def test_clip_is_sent_to_zero_shot(at):
    for model in clip_models():
        with pytest.raises(HeadNotFoundError, match=r"no classifier.*neotta\.zero_shot"):
            neotta.adapt(model.eval(), at=at)


class Linear8bitLt(nn.Linear):
    """Named as in bitsandbytes."""

    def forward(self, z):
        return super().forward(z.half().float())


class Weight(nn.Parameter):
    """A tensor as those of torchao."""

    __module__ = "torchao.dtypes"


def quantized():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    yield torch.ao.quantization.quantize_dynamic(plain, {nn.Linear})
    named = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    named[1] = Linear8bitLt(12, 4)
    yield named
    tensors = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    tensors[1].weight = Weight(tensors[1].weight.data)
    yield tensors


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quantize.*:UserWarning")
def test_a_quantized_head_is_called_quantized():
    for model in quantized():
        for options in ({}, {"example": torch.randn(2, 3, 2, 2)}):
            with pytest.raises(HeadNotFoundError, match=r"is quantized.*adapt and fold before quantizing"):
                neotta.adapt(model, **options)


def test_a_compiled_model_has_the_head_of_the_plain_one():
    from neotta.neo.find_head import find_heads

    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    compiled = torch.compile(plain, backend="eager")
    assert find_heads(compiled) == find_heads(plain) == {"1": plain[1]}
    assert find_heads(compiled, "_orig_mod.1") == {"_orig_mod.1": plain[1]}


def test_importing_registers_no_operators():
    import subprocess
    import sys

    code = "import neotta, neotta.neo.head, torch; raise SystemExit(hasattr(torch.ops.neotta, 'row_weights'))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
