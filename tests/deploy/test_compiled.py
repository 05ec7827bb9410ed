"""torch.compile, torch.export and AOT-inductor on an adapted model."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
from support.deploy_models import hf_vit, network, started, timm_vit

import neotta
from neotta.errors import ModelError
from neotta.neo.find_head import logits_of

MODELS = {"timm vit": timm_vit, "hf vit": hf_vit, "network": network}
VARIANTS = {
    "neo": {"method": "neo"},
    "stream": {"method": "neo-stream"},
    "continual": {"method": "neo-continual", "alpha": 0.3, "debias": True},
    "shrunk": {"method": "neo", "shrinkage": "james-stein"},
    "mse": {"method": "neo-mse", "weighting": "batch"},
    "bn": {"method": "neo-bn", "statistics": "ema"},
}


def ragged():
    generator = torch.Generator().manual_seed(8)
    return [torch.randn(size, 3, 32, 32, generator=generator) + 0.3 for size in (4, 2, 7, 3)]


def traced(model):
    images = ragged()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about its own insides
        return torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)


@torch.no_grad()
@pytest.mark.parametrize(("build", "options"), [
    *((build, VARIANTS["neo"]) for build in MODELS.values()),
    *((network, options) for options in list(VARIANTS.values())[1:]),
], ids=[*MODELS, *list(VARIANTS)[1:]])  # fmt: skip
def test_an_exported_program_adapts_as_the_model_does(build, options):
    eager = neotta.adapt(build(), **options)
    model = neotta.adapt(build(), **options)
    run = traced(model).module()
    for images in ragged():
        torch.testing.assert_close(logits_of(run(images)), logits_of(eager(images)), atol=1e-5, rtol=0)
    name, head = next(iter(neotta.heads(eager).items()))
    torch.testing.assert_close(run.get_buffer(f"{name}.streams.table"), head.streams.state(), atol=1e-4, rtol=1e-6)
    assert neotta.heads(model)[name].count == 16  # the program is about the model it was made of, not about a copy


@torch.no_grad()
def test_an_exported_program_keeps_bad_rows_out():
    run = traced(neotta.adapt(network(), "neo")).module()
    images = ragged()[0]
    images[1] = torch.nan
    assert torch.isfinite(run(images)).all(dim=1).tolist() == [True, False, True, True]
    assert run.get_buffer("fc.streams.table")[0, :2].tolist() == [3, 1]


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "stream"])  # which is compiled for each size
def test_compiled_it_is_one_graph(name):
    options = VARIANTS[name]
    eager, model = neotta.adapt(network(), **options), neotta.adapt(network(), **options)
    run = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for images in ragged():
        torch.testing.assert_close(run(images), eager(images), atol=1e-5, rtol=0)
    assert neotta.head(model).count == 16
    torch._dynamo.reset()


@torch.no_grad()
def test_a_saved_program_goes_on_from_where_it_was(tmp_path):
    model = started(network())
    path = tmp_path / "program.pt2"
    torch.export.save(traced(model), path)
    run = torch.export.load(path).module()
    for images in ragged():
        torch.testing.assert_close(run(images), model(images), atol=1e-5, rtol=0)
    assert int(run.get_buffer("fc.streams.table")[0, 0]) == neotta.head(model).count == 23


@torch.no_grad()
def test_many_streams_are_not_traced_but_one_of_them_is():
    many = neotta.adapt(network(), "neo", streams=True)
    images = ragged()[0]
    with neotta.streams([0, 1, 1, 1]):
        wanted = many(images)
        with pytest.raises(ModelError, match="export one of them"):
            traced(many)
    run = traced(neotta.fold(many, stream=1)).module()
    torch.testing.assert_close(run(images)[1:], wanted[1:], atol=1e-5, rtol=0)


class Two(torch.nn.Module):
    """Two adapted models in one, since compiling takes long."""

    def __init__(self):
        super().__init__()
        self.neo = neotta.adapt(network(), "neo")
        self.continual = neotta.adapt(network(), **VARIANTS["continual"])

    def forward(self, images):
        return self.neo(images), self.continual(images)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOT-inductor needs a C++ compiler")
def test_ahead_of_time_compiled_it_adapts(tmp_path):
    """Most of the time goes into headers of torch, which its own cache keeps for the next time."""
    program = traced(Two())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own insides
        package = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "model.pt2"),
            inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},  # this is about results, not speed
        )
        first, second = (torch._inductor.aoti_load_package(package) for _ in range(2))
    eager = Two()
    for images in ragged():
        torch.testing.assert_close(tuple(first(images)), eager(images), atol=1e-4, rtol=0)
    # every loaded package has a state of its own
    torch.testing.assert_close(tuple(second(images)), Two()(images), atol=1e-4, rtol=0)
