"""Text, sound and video: an adapter takes what the model takes, and counts samples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import HeadNotFoundError, InputError
from neotta.neo.find_head import logits_of

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_labels": 5}
NEEDS = {name: kind.declaration for name, kind in neotta.methods().items()}
ANY = [name for name, needs in NEEDS.items() if not needs.pixels and not needs.source_images and name != "neo-bn"]


def text(tokens=6, samples=7):
    ids = torch.randint(3, 40, (samples, tokens), generator=torch.Generator().manual_seed(1))
    lengths = torch.arange(samples) % (tokens - 1) + 2
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=16, **TINY))


def sound():
    from transformers import ASTConfig, ASTForAudioClassification

    return ASTForAudioClassification(ASTConfig(max_length=32, num_mel_bins=16, patch_size=8, **TINY))


def video():
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    return VideoMAEForVideoClassification(
        VideoMAEConfig(image_size=16, patch_size=8, num_frames=4, tubelet_size=2, **TINY)
    )


class Bag(nn.Module):
    """A text classifier of one's own."""

    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.out = nn.Embedding(40, 8), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        summed = (self.embed(input_ids) * mask[..., None]).sum(1)
        return self.out(self.middle(summed / mask.sum(1, keepdim=True)))


MODELS = {
    "bert": (bert, text),
    "sound": (sound, lambda: {"input_values": torch.randn(7, 32, 16)}),
    "sound-tensor": (sound, lambda: torch.randn(7, 32, 16)),
    "video": (video, lambda: {"pixel_values": torch.randn(7, 4, 3, 16, 16)}),
    "bag": (Bag, text),
    "bag-tensor": (Bag, lambda: text()["input_ids"]),
}


@pytest.fixture(params=MODELS)
def case(request):
    torch.manual_seed(0)
    build, batch = MODELS[request.param]
    return build().eval(), batch()


def first(batch, count):
    return {key: value[:count] for key, value in batch.items()} if isinstance(batch, dict) else batch[:count]


def call(model, batch):
    with torch.no_grad():
        return logits_of(model(**batch) if isinstance(batch, dict) else model(batch))


def test_adapt_counts_samples(case):
    model, batch = case
    plain = call(model, batch)
    for example in (None, batch):
        neotta.adapt(model, "neo", example=example)
        assert not torch.allclose(call(model, batch), plain)
        assert neotta.head(model).count == 7
        neotta.restore(model)
    assert torch.equal(call(model, batch), plain)


@pytest.mark.parametrize("method", [name for name in ANY if name != "bn"])
def test_every_method_that_needs_no_pixels_takes_what_the_model_takes(case, method):
    model, batch = case
    plain = call(model, batch)
    adapter = neotta.create(method, model)
    logits = adapter(batch)
    assert logits.shape == (7, 5)
    assert logits.isfinite().all()
    adapter(batch, adapt=False)
    assert adapter(first(batch, 0)).shape == (0, 5)
    adapter.reset()
    assert torch.equal(adapter(batch), logits)
    assert torch.equal(call(adapter.detach(), batch), plain)


def test_the_encoder_and_the_embeddings_are_those_of_samples(case):
    model, batch = case
    encoder, head = neotta.split(model)
    with torch.no_grad():
        torch.testing.assert_close(head(encoder(batch)), call(model, batch))


def test_methods_that_change_images_say_so():
    model = Bag().eval()
    changing = [name for name, needs in NEEDS.items() if needs.pixels]
    assert changing == ["cotta", "deyo", "foa", "roid", "rotta", "surgeon"]
    with pytest.raises(InputError, match=r"deyo changes images, so it takes a tensor .*, got dict"):
        neotta.create("deyo", model)(text())
    with pytest.raises(InputError, match=r"floating point tensor of \(batch, channels, height, width\)"):
        neotta.create("deyo", model)(text()["input_ids"])


def test_batches_that_are_none():
    adapter = neotta.create("neo", Bag().eval())
    for wrong in ("words", [1, 2], {"input_ids": "words"}):
        with pytest.raises(InputError, match="a batch must be a tensor, or a dict of tensors"):
            adapter(wrong)
    with pytest.raises(InputError, match="one row per sample"):
        adapter({"input_ids": torch.ones(3, 4, dtype=torch.long), "attention_mask": torch.ones(2, 4)})
    assert adapter.neo.count == 0


def token_model():
    from transformers import BertConfig, BertForTokenClassification

    torch.manual_seed(0)
    return BertForTokenClassification(BertConfig(vocab_size=40, max_position_embeddings=16, **TINY)).eval()


def test_token_classification_is_rejected():
    model, batch = token_model(), text()
    for options in ({}, {"example": batch}, {"at": "logits"}):
        with pytest.raises(HeadNotFoundError, match=r"expected \(batch, classes\).*tokens, pixels or objects"):
            neotta.adapt(model, **options)
    with pytest.raises(HeadNotFoundError, match="tokens"):
        neotta.create("t3a", model)


def test_a_language_model_that_classifies_the_last_token():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, num_labels=5, pad_token_id=0)
    model = GPT2ForSequenceClassification(config).eval()
    with pytest.raises(HeadNotFoundError, match=r"'score', which returns a tensor of \(2, 8, 5\).*at='logits'"):
        neotta.adapt(model)
    batch = text()
    plain = call(model, batch)
    neotta.adapt(model, "neo", at="logits")
    torch.testing.assert_close(call(model, batch), plain - plain.mean(0), rtol=1e-4, atol=1e-5)
    assert neotta.head(model).count == 7


@pytest.mark.parametrize("method", ["tent", "bn", "sar", "roid"])
def test_features_returned_before_the_logits_are_not_taken_for_them(method):
    class FeaturesFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.fc = nn.Linear(8, 5)

        def forward(self, images):
            features = self.body(images)
            return features, self.fc(features)

    adapter = neotta.create(method, FeaturesFirst().eval())
    with pytest.raises(InputError, match=r"returns \(6, 8\) first, and its head has 5 classes"):
        adapter(torch.randn(6, 3, 32, 32))
