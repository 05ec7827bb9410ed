from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.reoptioned import with_options
from support.states import same
from torch import nn

import neotta
from neotta.adapters._evolution import Evolution
from neotta.errors import OptionError, StateMismatchError, UnsupportedModelError

SIZES = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}


def timm_vit(**changes):
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    return VisionTransformer(**{**SIZES, **changes}).eval()


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)).eval()


def torchvision_vit():
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(16, 8, 3, 2, 16, 32, num_classes=5)
    nn.init.normal_(model.heads.head.weight)  # it is made with zeros
    return model.eval()


MODELS = {"timm": timm_vit, "hf": hf_vit, "torchvision": torchvision_vit}


def images(count, seed=1, dtype=torch.float32):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make(model=None, **options):
    return neotta.create("foa", model or timm_vit(), **{"source": images(12, seed=0), **options})


# ---- prompts and features


@pytest.mark.parametrize("kind", MODELS)
def test_features_without_prompts(kind):
    model, batch = MODELS[kind](), images(4)
    adapter = make(model)
    with torch.no_grad():
        features = adapter.vit.features(batch, None)
        assert features.shape == (4, adapter.vit.num_features) == (4, 48)
        assert torch.equal(features[:, -16:], neotta.split(model).encoder(batch))
    torch.testing.assert_close(adapter.source.std, adapter.vit.features(images(12, seed=0), None).detach().std(0))


def test_features_of_timm_by_hand():
    model, batch = timm_vit(pre_norm=True), images(4)
    adapter = make(model)
    with torch.no_grad():
        tokens = model._pos_embed(model.patch_embed(batch))
        prompts = adapter.best.expand(4, -1, -1)
        tokens = model.norm_pre(torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], dim=1))
        expected = []
        for block, norm in zip(model.blocks, [*(block.norm1 for block in model.blocks[1:]), model.norm], strict=True):
            tokens = block(tokens)
            expected.append(norm(tokens)[:, 0])
        got = adapter.vit.features(batch, adapter.best)
    torch.testing.assert_close(got, torch.cat(expected, dim=1))


def test_features_of_hugging_face_by_hand():
    model, batch = hf_vit(), images(4)
    adapter = make(model)
    with torch.no_grad():
        tokens = model.vit.embeddings(batch)
        tokens = torch.cat([tokens[:, :1], adapter.best.expand(4, -1, -1), tokens[:, 1:]], dim=1)
        layers = list(model.vit.layers)
        expected = []
        for layer, norm in zip(layers, [*(x.layernorm_before for x in layers[1:]), model.vit.layernorm], strict=True):
            tokens = layer(tokens)
            expected.append(norm(tokens)[:, 0])
        got = adapter.vit.features(batch, adapter.best)
    torch.testing.assert_close(got, torch.cat(expected, dim=1))


def test_first_prompts_are_uniform_and_seeded():
    bound = math.sqrt(6 / (3 * 8 * 8 + 16))
    best = make(num_prompts=200).best
    assert 0.9 * bound < best.abs().max() <= bound
    assert abs(best.mean()) < 0.05 * bound
    assert torch.equal(best, make(num_prompts=200).best)
    assert not torch.equal(best, make(num_prompts=200, seed=1).best)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: timm_vit(global_pool="avg"), "more than the class token"),
        (lambda: timm_vit(global_pool="avg", class_token=False), "more than the class token"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 5)),
            "no stacks",
        ),
    ],
)
def test_models_that_cannot_take_prompts(model, why):
    with pytest.raises(UnsupportedModelError, match=f"FOA needs a vision transformer.*{why}"):
        make(model())


def test_models_that_cannot_take_prompts_are_refused_with_statistics_too():
    statistics = tuple(make().source)
    with pytest.raises(UnsupportedModelError, match="more than the class token"):
        make(timm_vit(global_pool="avg", fc_norm=False), source=statistics)


def test_distilled_models_are_refused():
    from timm.models.deit import VisionTransformerDistilled

    model = VisionTransformerDistilled(**SIZES).eval()
    with pytest.raises(UnsupportedModelError, match="has 2 heads"):
        make(model, head="head")


# ---- adaptation


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_stays_on_the_model(kind):
    model = MODELS[kind]()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = images(4)
    plain = [neotta.create("none", model)(batch)]
    calls = []
    adapter = make(model)
    counter = model.register_forward_hook(lambda *_: calls.append(1))
    adapter(batch)
    assert len(calls) == adapter.forward_passes == 3
    adapter(batch, adapt=False)
    assert len(calls) == 4
    counter.remove()
    with pytest.raises(Exception, match=r"size|height|Input"):  # whatever the model says of images of another size
        adapter(torch.randn(2, 3, 20, 20))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert adapter.detach() is model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(neotta.create("none", model)(batch), plain[0])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_the_answer_is_never_less_fit_than_the_best_so_far(seed, sizes):
    adapter = make(seed=seed)
    for index, size in enumerate(sizes):
        batch = images(size, seed=index)
        with torch.no_grad():
            before = adapter._judge(adapter.vit.features(batch, adapter.best))
            answer = adapter(batch)
            after = adapter._judge(adapter.vit.features(batch, adapter.best))
        assert after.fitness <= before.fitness
        assert torch.isfinite(answer).all()


def test_fitness_by_hand():
    adapter = make(lambda_=0.7, classes=[0, 2, 4])
    batch = images(6)
    with torch.no_grad():
        features = adapter.vit.features(batch, adapter.best)
        logits = adapter.head(features[:, -16:])[:, [0, 2, 4]]
        trial = adapter._judge(adapter.vit.features(batch, adapter.best))
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum()
    unlike = sum(
        float((mine - its).square().sum())
        for mine, its in zip((features.std(0), features.mean(0)), adapter.source, strict=True)
    )
    assert trial.entropy == pytest.approx(float(entropy), rel=1e-5)
    assert trial.fitness == pytest.approx(0.7 * unlike * 6 / 64 + float(entropy), rel=1e-5)


def test_embeddings_are_shifted_by_earlier_batches_only():
    adapter = make(shift_step=0.5)
    batch = images(6)
    first = adapter(batch)
    embeddings = adapter.vit.embeddings(batch, adapter.best)
    torch.testing.assert_close(first, adapter.head(embeddings).detach())
    shift = 0.5 * (adapter.source.mean[-16:] - adapter.hist)
    torch.testing.assert_close(adapter(batch, adapt=False), adapter.head(embeddings + shift).detach())


def test_without_adaptation_nothing_changes():
    adapter = make()
    adapter(images(4))
    state = adapter.state_dict()
    first = adapter(images(4, seed=2), adapt=False)
    assert torch.equal(adapter(images(4, seed=2), adapt=False), first)
    assert same(adapter.state_dict(), state)


@pytest.mark.parametrize("kind", MODELS)
def test_reset_and_state_are_exact(kind, tmp_path):
    stream = [images(4, seed=seed) for seed in range(8)]
    model = MODELS[kind]()
    adapter = make(model)
    fresh = adapter.state_dict()
    first = [adapter(batch) for batch in stream[:4]]
    adapter.save(tmp_path / "foa.safetensors")
    rest = [adapter(batch) for batch in stream[4:]]

    other = make(model)
    other(stream[0])
    other.load(tmp_path / "foa.safetensors")
    assert all(torch.equal(other(batch), logits) for batch, logits in zip(stream[4:], rest, strict=True))
    assert same(other.state_dict(), adapter.state_dict())

    adapter.reset()
    assert same(adapter.state_dict(), fresh)
    assert all(torch.equal(adapter(batch), logits) for batch, logits in zip(stream, first, strict=False))


def test_a_state_of_another_number_of_prompts_is_refused():
    adapter = make()
    state = adapter.state_dict()
    with pytest.raises(StateMismatchError):
        adapter.load_state_dict(make(num_prompts=3).state_dict())
    assert same(adapter.state_dict(), state)


def test_bad_batches_are_answered_and_forgotten():
    adapter = make()
    adapter(images(4))
    state = adapter.state_dict()
    bad = images(4, seed=2)
    expected = adapter(bad, adapt=False)
    bad[1, 0, 0, 0] = math.inf
    with pytest.warns(RuntimeWarning, match="1 of 4 samples"):
        logits = adapter(bad)
    assert adapter.skipped == 4
    torch.testing.assert_close(logits[[0, 2, 3]], expected[[0, 2, 3]])
    assert same(adapter.state_dict(), state)


def test_candidates_that_break_the_model_are_worst():
    adapter = make()
    adapter.search.ask = lambda: torch.full((2, 32), math.inf)  # prompts that no transformer survives
    told = []
    adapter.search.tell = lambda vectors, fitness: told.append(fitness)
    best = adapter.best
    logits = adapter(images(4))
    assert told[0][:2] == [math.inf, math.inf]
    assert adapter.best is best
    assert torch.isfinite(logits).all()
    assert torch.isfinite(adapter.hist).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype):
    adapter = make(timm_vit().to(dtype))
    for seed in range(2):
        logits = adapter(images(4, seed=seed, dtype=dtype))
    assert logits.dtype == dtype
    assert torch.isfinite(logits).all()
    assert adapter.hist.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_collapse_is_noticed_once():
    model = timm_vit()
    with torch.no_grad():
        model.head.bias[3] = 100
    adapter = make(model)
    batch = images(128)
    adapter(batch)
    with pytest.warns(RuntimeWarning, match="256 predictions of foa are all class 3"):
        adapter(batch)
    adapter(batch)  # a second warning would be an error


# ---- options


def test_source_statistics_can_be_given():
    first = make()
    second = make(source=tuple(first.source))
    assert torch.equal(first(images(4)), second(images(4)))


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (None, "FOA needs a few clean images"),
        (images(1), "at least 2"),
        (images(4).to(torch.uint8), "floating point"),
        (images(4)[0], "were expected"),
        (images(4) * math.nan, "NaN or Inf"),
        ((torch.zeros(7), torch.zeros(7)), r"\(48,\)"),
        ("images", "source"),
    ],
)
def test_wrong_source(source, match):
    with pytest.raises(OptionError, match=match):
        make(source=source)


def test_presets_and_changes():
    original = make(preset="original")
    assert original.best.shape == (3, 16)
    assert original.forward_passes == 28
    adapter = make()
    adapter(images(4))
    adapter = with_options(adapter, shift_step=0.0)
    assert torch.equal(adapter(images(4), adapt=False), adapter.head(adapter.vit.embeddings(images(4), adapter.best)))
    assert "tensor" not in repr(adapter)


# ---- the evolution strategy


def evolve(search, count, best):
    """Populations on the way to all ones, the best so far told besides; and the best."""
    seen = []
    for _ in range(count):
        vectors = torch.cat([search.ask(), best[None]])
        fitness = [float((vector - 1).square().sum()) for vector in vectors]
        best = vectors[fitness.index(min(fitness))]
        search.tell(vectors, fitness)
        seen.append(vectors)
    return seen, best


@pytest.mark.parametrize(("dimension", "population", "count"), [(30, 2, 24), (20, 4, 12), (12, 9, 12), (310, 2, 6)])
def test_evolution_goes_on_exactly(dimension, population, count):
    search = Evolution(dimension, population, 1.0, 2020)
    best = torch.full((dimension,), 0.1)
    for _ in range(count):
        other = Evolution(dimension, population, 1.0, 7)
        other.load({name: tensor.contiguous() for name, tensor in search.state().items()})
        its, _ = evolve(other, 3, best)
        ahead = other.state()
        mine, best = evolve(search, 1, best)
        assert torch.equal(mine[0], its[0])
        back = Evolution(dimension, population, 1.0, 7)
        back.load(search.state())
        evolve(back, 2, best)
        assert same(back.state(), ahead)
    assert search._strategy.sm.count_eigen > 0 or dimension > 300, "the distribution was updated on the way"


def test_evolution_finds_the_minimum():
    search = Evolution(10, 8, 1.0, 0)
    _, best = evolve(search, 150, torch.zeros(10))
    torch.testing.assert_close(best, torch.ones(10), atol=1e-2, rtol=0)
    assert search.sigma < 0.1


def test_infinite_fitness_is_worst():
    searches = [Evolution(6, 4, 1.0, 0) for _ in range(2)]
    for search, last in zip(searches, (math.inf, 1e9), strict=True):
        search.tell(search.ask(), [1.0, 3.0, 2.0, last])
    assert torch.equal(searches[0].ask(), searches[1].ask())


def test_evolution_leaves_numpy_and_warnings_alone():
    np.random.seed(5)
    wanted = np.random.rand()
    np.random.seed(5)
    filters = list(warnings.filters)
    evolve(Evolution(8, 2, 1.0, 2020), 12, torch.zeros(8))
    assert np.random.rand() == wanted
    assert warnings.filters == filters


@pytest.mark.slow
def test_evolution_survives_an_endless_stream():
    search = Evolution(4, 8, 1.0, 0)
    _, best = evolve(search, 1500, torch.zeros(4))
    assert torch.isfinite(best).all()
    assert search.sigma > 0
