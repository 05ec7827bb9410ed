"""The contract that every registered method keeps, on every kind of model (see `neotta.adapters.base`)."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from adapters.required import REQUIRED
from torch import nn

import neotta
from neotta.adapters import registry
from neotta.adapters.base import EmbeddingAdapter
from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    ModelChangedError,
    NeottaError,
    OptionError,
    StateFileError,
    StateMismatchError,
    UnknownMethodError,
    UnsupportedModelError,
)
from neotta.neo.find_head import logits_of


class Own(nn.Module):
    """A hand-written network with GroupNorm whose head no convention names."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.group = nn.GroupNorm(2, 8)
        self.mix = nn.Linear(8, 12)
        self.out = nn.Linear(12, 7)

    def forward(self, images):
        return self.out(torch.relu(self.mix(self.group(self.stem(images)).mean(dim=(2, 3)))))


def timm_vit():
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=7)


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        num_labels=7,
    )  # fmt: skip
    return ViTForImageClassification(config)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 7),
    )  # fmt: skip


KINDS = {"timm-vit": timm_vit, "hf-vit": hf_vit, "cnn": cnn, "own": Own}
CANNOT = {("neo-bn", "timm-vit"), ("neo-bn", "hf-vit"), ("neo-bn", "own"), ("foa", "cnn"), ("foa", "own")}
METHODS = list(neotta.methods())
PAIRS = [(method, kind) for method in METHODS for kind in KINDS if (method, kind) not in CANNOT]


def build(kind: str) -> nn.Module:
    torch.manual_seed(1)
    model = KINDS[kind]()
    with torch.no_grad():  # confident enough for methods that learn from confident samples
        neotta.split(model).head.weight.mul_(8)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.1)
    return model.eval()


def images(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 0.5).to(dtype)


def make(method: str, model: nn.Module, **options):
    dtype = next(model.parameters()).dtype
    needed = REQUIRED.get(method, lambda clean: {})(images(12, seed=99, dtype=dtype))
    return neotta.create(method, model, **needed, **options)


def snapshot(adapter):
    return {name: tensor.clone() for name, tensor in adapter.state_dict().items()}


def same(one: dict, other: dict) -> bool:
    """Bit for bit; NaN stands for what is not known yet."""
    return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(params=PAIRS, ids=lambda pair: "-on-".join(pair))
def pair(request):
    method, kind = request.param
    return method, build(kind)


def test_logits_of_the_right_shape_without_a_graph(pair):
    method, model = pair
    adapter = make(method, model)
    for rows in (5, 1, 3, 8):
        logits = adapter(images(rows, seed=rows))
        assert logits.shape == (rows, 7)
        assert logits.isfinite().all()
        assert not logits.requires_grad
        torch.testing.assert_close(logits.softmax(1).sum(1), torch.ones(rows))
    assert adapter(images(0)).shape == (0, 7)
    assert adapter(images(0), adapt=False).shape == (0, 7)


def test_predicting_changes_nothing(pair):
    method, model = pair
    adapter, twin = make(method, model), make(method, model)
    for seed in range(3):
        before = snapshot(adapter)
        first = adapter(images(4, seed=50), adapt=False)
        assert torch.equal(first, adapter(images(4, seed=50), adapt=False))
        assert same(before, snapshot(adapter))
        assert torch.equal(adapter(images(6, seed)), twin(images(6, seed)))


def test_reset_is_exact(pair):
    method, model = pair
    adapter, fresh = make(method, model), make(method, model)
    start = snapshot(adapter)
    answers = [adapter(images(6, seed)) for seed in range(3)]
    adapter.reset()
    assert same(start, snapshot(adapter))
    assert same(start, snapshot(fresh))
    assert all(torch.equal(answer, adapter(images(6, seed))) for seed, answer in enumerate(answers))


def test_the_model_is_never_touched(pair):
    method, model = pair
    model.train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model)
    plain = dict(model.named_modules())
    adapter = make(method, model)
    for seed in range(2):
        adapter(images(6, seed))
        assert dict(model.named_modules()) == plain
        for (name, mine), theirs in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
            assert torch.equal(mine, theirs), name
        for mine, theirs in zip(model.parameters(), before.parameters(), strict=True):
            assert mine.requires_grad == theirs.requires_grad
            assert torch.equal(mine.grad, torch.ones_like(mine))
        for mine, theirs in zip(model.modules(), before.modules(), strict=True):
            assert mine.training == theirs.training
            assert vars(mine).keys() == vars(theirs).keys()
            assert not mine._forward_hooks
            assert not mine._forward_pre_hooks
    assert adapter.detach() is model
    for after in (lambda: adapter(images(2)), lambda: adapter(images(0)), adapter.reset):
        with pytest.raises(NeottaError, match="detached"):
            after()


def test_a_failure_in_the_middle_leaves_the_model_whole(pair):
    method, model = pair
    adapter = make(method, model)
    modules, before = dict(model.named_modules()), logits_of(model(images(4)))
    head = neotta.split(model).head

    def fail(module, args):
        raise RuntimeError("the cable is out")

    hook = head.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="cable"):
        adapter(images(4))
    hook.remove()
    assert dict(model.named_modules()) == modules
    assert torch.equal(logits_of(model(images(4))), before)
    adapter(images(4))


def test_a_state_continues_exactly(pair, tmp_path):
    method, model = pair
    adapter = make(method, model)
    for seed in range(2):
        adapter(images(6, seed))
    state = snapshot(adapter)
    adapter.save(tmp_path / "s")
    expected = [adapter(images(5, seed)) for seed in range(2, 5)]
    for load in (lambda other: other.load_state_dict(state), lambda other: other.load(tmp_path / "s")):
        other = make(method, copy.deepcopy(model))
        load(other)
        assert all(torch.equal(answer, other(images(5, seed))) for seed, answer in enumerate(expected, start=2))


IN_A_NEW_PROCESS = """
import sys, torch
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/adapters"]
torch.set_num_threads(1)
from test_every_adapter import LAST_KIND, build, images, make
from safetensors.torch import save_file
folder, answers = sys.argv[2], {}
for method, kind in LAST_KIND.items():
    adapter = make(method, build(kind))
    adapter.load(f"{folder}/{method}")
    answers[method] = adapter(images(5, seed=7))
save_file(answers, folder + "/answers")
"""
LAST_KIND = dict(PAIRS)


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """What every method answers here and, its state loaded, in a new process: one for all, as it takes seconds."""
    from safetensors.torch import load_file

    folder, here = tmp_path_factory.mktemp("states"), {}
    for method, kind in LAST_KIND.items():
        adapter = make(method, build(kind))
        for seed in range(2):
            adapter(images(6, seed))
        adapter.save(folder / method)
        here[method] = adapter(images(5, seed=7))
    tests = Path(__file__).parent.parent
    subprocess.run([sys.executable, "-W", "error", "-c", IN_A_NEW_PROCESS, tests, folder], check=True)
    return here, load_file(folder / "answers")


@pytest.mark.parametrize("method", METHODS)
def test_a_state_continues_exactly_in_a_new_process(method, continued):
    here, there = continued
    assert torch.equal(here[method], there[method])


def test_states_of_others_are_refused_and_nothing_is_lost(pair, tmp_path):
    method, model = pair
    adapter = make(method, model)
    adapter(images(6))
    before = snapshot(adapter)
    with pytest.raises(StateMismatchError):
        adapter.load_state_dict({**before, "something": torch.zeros(3)})
    for name in list(before)[:1]:
        with pytest.raises(StateMismatchError):
            adapter.load_state_dict({**before, name: torch.zeros(3, 1, 4)})
        with pytest.raises(StateMismatchError):
            adapter.load_state_dict({key: value for key, value in before.items() if key != name})
    (tmp_path / "bad").write_bytes(b"no state")
    with pytest.raises(StateFileError):
        adapter.load(tmp_path / "bad")
    other = "neo" if method == "none" else "none"
    neotta.create(other, model).save(tmp_path / "other")
    with pytest.raises(StateMismatchError, match=other):
        adapter.load(tmp_path / "other")
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_batch_that_is_not_finite_never_enters_the_state(pair, value):
    method, model = pair
    adapter, clean = make(method, model), make(method, model)
    adapter(images(6)), clean(images(6))
    bad = images(3, seed=5)
    bad[:] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert adapter(bad).shape == (3, 7)
    state = snapshot(adapter)
    unknown = {name for name, tensor in snapshot(clean).items() if tensor.isnan().any()}
    assert all(tensor.isfinite().all() for name, tensor in state.items() if name not in unknown)
    if state:
        assert adapter.skipped == 3
        assert any("NaN or Inf" in str(warning.message) for warning in caught)
    torch.testing.assert_close(adapter(images(4, seed=8)), clean(images(4, seed=8)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(pair, dtype):
    method, model = pair
    kind = neotta.methods()[method]
    model.to(dtype)
    if dtype.itemsize < 4 and not kind.declaration.backprop_free:
        with pytest.raises(UnsupportedModelError, match="float32"):
            make(method, model)
        return
    adapter = make(method, model)
    for seed in range(2):
        logits = adapter(images(6, seed, dtype))
    assert logits.dtype == dtype
    assert logits.isfinite().all()
    statistics = [tensor for tensor in snapshot(adapter).values() if tensor.is_floating_point()]
    assert all(tensor.dtype.itemsize >= 4 for tensor in statistics)


def test_classes_are_kept_before_anything_else(pair):
    method, model = pair
    kept = [1, 2, 5]
    mask = torch.zeros(7, dtype=torch.bool)
    mask[kept] = True
    by_index, by_mask = make(method, model, classes=kept), make(method, model, classes=mask)
    for seed in range(2):
        logits = by_index(images(6, seed))
        assert logits.shape == (6, 3)
        assert torch.equal(logits, by_mask(images(6, seed)))
    frozen = by_index(images(4, seed=9), adapt=False)
    assert frozen.shape == (4, 3)
    for wrong in ([], [7], [1, 1], [0.5], torch.ones(4, dtype=torch.bool), "abc", ["a"], 3, object()):
        with pytest.raises(OptionError, match="classes"):
            make(method, model, classes=wrong)


def test_embeddings_give_what_images_give(pair):
    method, model = pair
    adapter = make(method, model)
    needs = adapter.declaration.needs
    assert isinstance(adapter, EmbeddingAdapter) == (needs == "embeddings")
    if needs != "embeddings":
        return
    cached, encoder = make(method, model), neotta.split(model).encoder
    for seed in range(3):
        with torch.no_grad():
            embeddings = encoder(images(6, seed))
        answer = adapter(images(6, seed), adapt=seed != 2)
        torch.testing.assert_close(cached.predict_embeddings(embeddings, adapt=seed != 2), answer)
    assert cached.predict_embeddings(embeddings[:0]).shape == (0, 7)
    before = snapshot(cached)
    for wrong in (embeddings[:, 1:], embeddings.long(), embeddings[0], embeddings.numpy(), None, [1.0]):
        with pytest.raises(InputError, match="embeddings of this model are a floating point tensor of"):
            cached.predict_embeddings(wrong)
    with pytest.raises(InputError, match=r"the embeddings are torch.float64, the model is torch.float32"):
        cached.predict_embeddings(embeddings.double())
    assert same(before, snapshot(cached))
    with torch.autocast("cpu"):
        assert cached.predict_embeddings(embeddings.bfloat16()).shape == (6, 7)
    cached.detach()
    with pytest.raises(NeottaError, match="detached"):
        cached.predict_embeddings(embeddings)


def test_inference_mode_and_gradients_outside_do_not_matter(pair):
    method, model = pair
    inside, outside = make(method, model), make(method, model)
    for seed in range(2):
        with torch.inference_mode():
            answer = inside(images(6, seed))
        assert torch.equal(answer, outside(images(6, seed)))


WORST = {"cotta": {"anchor_threshold": 1.0}, "sar": {"margin": 100.0}}
"""Options, none of which changes what is declared, that make a method take all its forward passes."""


def test_declarations_are_true(pair):
    method, model = pair
    adapter = make(method, model, **WORST.get(method, {}))
    counts = []
    hook = neotta.split(model).head.register_forward_pre_hook(lambda module, args: counts.append(args[0].requires_grad))
    adapter(images(6))
    hook.remove()
    assert len(counts) == adapter.forward_passes == adapter.declaration.forward_passes
    assert any(counts) != adapter.declaration.backprop_free


def test_wrong_images_are_named(pair):
    method, model = pair
    adapter = make(method, model)
    before = snapshot(adapter)
    for wrong in (images(2)[0], images(2).to(torch.uint8), [1, 2], images(2).double()):
        with pytest.raises(InputError):
            adapter(wrong)
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize("method", METHODS)
def test_a_head_exchanged_behind_its_back_is_noticed(method):
    kind = next(kind for kind in KINDS if (method, kind) not in CANNOT)
    model = build(kind)
    adapter = make(method, model)
    width = neotta.split(model).head.in_features
    neotta.adapt(model)
    calls = [lambda: adapter(images(4))]
    if isinstance(adapter, EmbeddingAdapter):
        calls.append(lambda: adapter.predict_embeddings(torch.zeros(2, width)))
    for call in calls:
        with pytest.raises(ModelChangedError, match="exchanged"):
            call()
    parent, _, name = adapter.head_name.rpartition(".")
    delattr(model.get_submodule(parent), name)
    for call in calls:
        with pytest.raises(ModelChangedError, match="removed"):
            call()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_a_model_converted_behind_its_back_is_noticed_or_followed(method, dtype):
    kind = next(kind for kind in KINDS if (method, kind) not in CANNOT)
    model = build(kind)
    adapter = make(method, model)
    adapter(images(4))
    model.to(dtype)
    if adapter.declaration.backprop_free:
        assert adapter(images(4, dtype=dtype)).dtype == dtype
        return
    for given in (images(4), images(4, dtype=dtype)):
        with pytest.raises(ModelChangedError, match=f"the model is now {dtype} .* make a new adapter"):
            adapter(given)


@pytest.mark.parametrize("method", METHODS)
def test_wrong_options_are_named(method):
    kind = next(kind for kind in KINDS if (method, kind) not in CANNOT)
    with pytest.raises(OptionError, match=f"method '{method}' has no option 'nonsense'"):
        make(method, build(kind), nonsense=1)
    with pytest.raises(OptionError, match="has no preset 'mine'"):
        make(method, build(kind), preset="mine")


@pytest.mark.parametrize(("method", "kind"), sorted(CANNOT & {(m, k) for m in METHODS for k in KINDS}))
def test_models_a_method_cannot_work_on_are_refused(method, kind):
    with pytest.raises(UnsupportedModelError):
        make(method, build(kind))


def test_a_model_that_adapts_by_itself_is_refused():
    with pytest.raises(AlreadyAdaptedError, match="restore"):
        neotta.create("none", neotta.adapt(build("own")))


def test_unknown_methods_suggest_the_nearest():
    with pytest.raises(UnknownMethodError, match="did you mean 'tent'"):
        neotta.create("tnet", build("own"))


@pytest.mark.parametrize(
    ("given", "meant"), [("NEO", "neo"), ("Tent", "tent"), ("NEO-bn", "neo-bn"), ("SURGEN", "surgeon")]
)
def test_case_does_not_hide_the_nearest(given, meant):
    with pytest.raises(UnknownMethodError, match=f"did you mean '{meant}'"):
        neotta.create(given, build("own"))


@pytest.mark.parametrize("wrong", [None, 3, b"neo", [None], [1, 2], {"neo": 1}])
def test_a_method_is_a_name(wrong):
    with pytest.raises(OptionError, match="a method is given by its name"):
        neotta.create(wrong, build("own"))


@pytest.mark.parametrize("wrong", [None, 3, "vit"])
def test_a_model_is_a_module(wrong):
    with pytest.raises(InputError, match=f"Module, got {type(wrong).__name__}"):
        neotta.create("neo", wrong)


@pytest.mark.parametrize("method", [*METHODS, "neo+lame"])
def test_every_method_has_both_presets(method):
    """So that a loop over all methods can ask for one of them; where nothing differs they are the same."""
    options = registry.find(method).Options
    original, paper = (options.make(method, {}, preset) for preset in ("original", "paper"))
    assert original == paper.changed(method, **options.presets.get("original", {}))
    with pytest.raises(OptionError, match="has no preset 'orginal': it has paper, original"):
        options.make(method, {}, "orginal")
