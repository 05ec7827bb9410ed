from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

import neotta
from neotta.adapters import registry
from neotta.adapters.declaration import Declaration
from neotta.errors import OptionError, UnknownMethodError, UnsupportedModelError, WorkerError
from neotta.evaluate._cost_worker import PeakMemory, count_flops, counted_passes, measure, sharpen
from neotta.evaluate.costs import _slowdown_error, ask, measure_costs

MODEL = "timm:vit_tiny_patch16_224"
TINY = {"pretrained": False, "img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 3, "num_classes": 10}
CONDITIONS = {"model_options": TINY, "batch_size": 4, "batches": 2, "threads": 1}
MEGABYTE = 2**20

OWN_METHODS = {
    "neotta_test_hoarder": """
import torch
from neotta.adapters.none import NoAdapt
from neotta.adapters.registry import register

@register
class Hoarder(NoAdapt):
    name = "hoarder"
    def _start(self):
        self.hoard = torch.ones(100 * 2**20, dtype=torch.uint8)
""",
    "neotta_test_crasher": """
from neotta.adapters.none import NoAdapt
from neotta.adapters.registry import register

@register
class Crasher(NoAdapt):
    name = "crasher"
""",
}


@pytest.fixture(scope="module")
def own_methods(tmp_path_factory):
    """Methods that are not neotta's own, in modules that only this process's path leads to."""
    folder = tmp_path_factory.mktemp("own")
    before = registry.methods()  # all of them, so that none is first met, and lost, within the test
    things = registry.METHODS._things
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for name, content in OWN_METHODS.items():
            (folder / f"{name}.py").write_text(content)
            importlib.import_module(name)
        (folder / "neotta_test_crasher.py").write_text("print('not JSON')\n1 / 0\n")
        yield
    things.clear()
    things.update(before)
    for name in OWN_METHODS:
        del sys.modules[name]


@pytest.fixture(scope="module")
def measured(own_methods, small_model):
    """All that needs real processes, at once: each takes seconds to start."""
    told, kept, failures = [], [], {}
    costs = measure_costs(
        ["neo", "tent", "hoarder", "crasher"],
        small_model,
        progress=lambda *args: told.append((*args, len(kept))),
        on_measured=kept.append,
        on_failure=failures.__setitem__,
        **{**CONDITIONS, "model_options": {}},
    )
    return SimpleNamespace(costs=costs, told=told, kept=kept, failures=failures)


@pytest.mark.slow
def test_passes_are_counted(measured):
    passes = {name: (cost.forward_passes, cost.backward_passes) for name, cost in measured.costs.items()}
    assert passes == {"neo": (1, 0), "tent": (1, 1), "hoarder": (1, 0)}


@pytest.mark.slow
def test_figures_make_sense_and_fit_into_json(measured):
    for name, cost in measured.costs.items():
        assert cost.method == name
        assert 0 < cost.seconds_per_image < 5
        assert cost.slowdown == cost.seconds_per_image / cost.plain_seconds_per_image
        assert cost.slowdown_error > 0
        assert cost.threads == 1
        assert cost.image_size == [32, 32]
        text = json.dumps(cost.entries())
        assert json.loads(text)["conditions"]["batch_size"] == 4
    neo, tent, nothing = (measured.costs[name].flops_per_image for name in ("neo", "tent", "hoarder"))
    assert nothing > 0
    assert neo == pytest.approx(nothing, rel=1e-3)  # a sum over the batch and a subtraction
    assert 1.5 < tent / nothing < 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell")
def test_memory_that_a_method_keeps_is_seen(measured):
    costs = measured.costs
    assert 90 * MEGABYTE < costs["hoarder"].memory_above_plain < 150 * MEGABYTE
    assert costs["neo"].memory_above_plain < 40 * MEGABYTE
    assert costs["hoarder"].peak_memory > 100 * MEGABYTE


@pytest.mark.slow
def test_a_method_that_fails_is_told_and_the_others_go_on(measured):
    assert set(measured.failures) == {"crasher"}
    crash = measured.failures["crasher"]
    assert isinstance(crash, WorkerError)
    assert "measuring 'crasher' failed: the process ended with code 1" in str(crash)
    assert "ZeroDivisionError" in str(crash)


@pytest.mark.slow
def test_progress_is_told_and_each_cost_given_as_soon_as_it_is_known(measured):
    names = {"the plain model": 0, "neo": 0, "tent": 1, "hoarder": 2, "crasher": 3}
    assert measured.told == [(name, done, 5, known) for done, (name, known) in enumerate(names.items())]
    assert measured.kept == list(measured.costs.values())


def test_too_long_is_too_long():
    with pytest.raises(WorkerError, match=r"measuring the plain model took longer than 0.01 s"):
        measure_costs(["neo"], MODEL, timeout=0.01, **CONDITIONS)


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        ("raise errors.UnsupportedModelError('not this one')", UnsupportedModelError, "asking: not this one$"),
        ("raise errors.UnknownModelError('x', ['y'])", WorkerError, "failed: UnknownModelError: unknown model 'x'"),
        ("raise ValueError('wrong')", WorkerError, r"(?s)ended with code 1.*ValueError: wrong"),
        ("os.kill(os.getpid(), 9)", WorkerError, r"killed by signal 9 .* without a word"),
        ("os._exit(0)", WorkerError, "gave no answer"),
    ],
)
def test_what_happens_in_a_process_is_told(tmp_path, monkeypatch, work, error, message):
    lines = ["import os", "from neotta import errors", "from neotta.evaluate._cost_worker import serve"]
    lines += ["def work(task):", f"    {work}", "serve(work)"]
    (tmp_path / "neotta_test_work.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(error, match=message):
        ask("neotta_test_work", "{}", what="asking", timeout=60)


def test_an_answer_is_not_mixed_with_what_is_printed(tmp_path, monkeypatch):
    lines = ["from neotta.evaluate._cost_worker import serve", "def work(task):", "    print('loading ...')"]
    lines += ["    return {**task, 'answer': 'ä'}", "serve(work)"]
    (tmp_path / "neotta_test_print.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert ask("neotta_test_print", '{"question": 1}', what="asking", timeout=60) == {"question": 1, "answer": "ä"}


@pytest.mark.parametrize(
    ("method", "wrong", "message"),
    [
        ("neo", {"options": {"alpha": 1}}, "no option 'alpha'"),
        ("neo", {"preset": "nonsense"}, "no preset"),
        ("tent", {"options": {"lr": "fast"}}, "option 'lr'"),
        ("neo", {"batch_size": 0}, "option 'batch_size' .* is 0: input should be greater than or equal to 1"),
        ("neo", {"threads": True}, "'threads' .* is True: input should be a valid integer"),
        ("neo", {"device": "tpu"}, "'device' .* is 'tpu'"),
        ("neo", {"timeout": 0}, "timeout"),
        ("neo", {"batchsize": 4}, "no option 'batchsize': did you mean 'batch_size'"),
        ("neo", {"model_options": {"dtype": "float64"}}, "dtype is a condition of its own"),
        ("neo", {"model_options": {"act_layer": torch.nn.ReLU}}, "JSON"),
    ],
)
def test_wrong_options_are_named_before_any_process_starts(method, wrong, message):
    with pytest.raises(OptionError, match=message):
        measure_costs({method: wrong.pop("options", {})}, MODEL, **wrong)


def test_an_unknown_method_is_named():
    with pytest.raises(UnknownMethodError, match="did you mean 'tent'"):
        measure_costs(["tend"], MODEL)


def test_a_method_of_a_script_cannot_be_measured(own_methods, monkeypatch):
    monkeypatch.setattr(registry.find("hoarder"), "__module__", "__main__")
    with pytest.raises(OptionError, match="module of its own"):
        measure_costs(["hoarder"], MODEL, **CONDITIONS)


# ---- the parts of the worker


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return neotta.load_model(MODEL, **TINY).model


def test_a_gradient_through_two_passes_counts_twice(model):
    images = torch.randn(2, 3, 32, 32)
    passes = Counter()
    with counted_passes(model, passes):
        model(images).sum().backward()
        (model(images) + model(images)).sum().backward()
        with torch.no_grad():
            model(images)
    assert passes == {"forward": 4, "backward": 3}
    model(images)
    assert passes["forward"] == 4
    model.zero_grad()


def test_flops_are_those_of_the_products(model):
    linear = torch.nn.Linear(5, 7)
    assert count_flops(linear, torch.randn(3, 5)) == 2 * 3 * 5 * 7
    tokens, width, attention = 5, 48, 2 * 2 * 5 * 5 * 48
    block = 2 * tokens * width * 12 * width + attention
    patches = 2 * 4 * width * 3 * 16 * 16
    assert count_flops(torch.no_grad()(model), torch.randn(1, 3, 32, 32)) == 2 * block + patches + 2 * width * 10


def test_what_torch_cannot_run_it_cannot_count():
    def fail(images):
        raise NotImplementedError("not on this device")

    assert count_flops(fail, torch.zeros(1)) is None


def test_an_untrained_model_becomes_sure(model):
    images = torch.randn(16, 3, 32, 32)
    head = neotta.split(model).head
    before = head.weight.detach().clone()
    sharpen(model, images)
    with torch.no_grad():
        entropy = torch.distributions.Categorical(logits=model(images)).entropy().mean()
    torch.testing.assert_close(entropy, torch.tensor(0.25 * math.log(10)), rtol=1e-3, atol=0)
    scale = (head.weight / before).detach()
    assert scale.min() > 1
    torch.testing.assert_close(scale, scale.mean().expand_as(scale))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the peak cannot be reset")
def test_the_peak_of_memory_starts_afresh():
    memory = PeakMemory(torch.device("cpu"))
    memory.restart()
    start = memory.read()
    block = torch.ones(200 * MEGABYTE, dtype=torch.uint8)
    assert memory.read() - start > 190 * MEGABYTE
    del block
    assert memory.read() - start > 190 * MEGABYTE
    memory.restart()
    assert memory.read() - start < 100 * MEGABYTE


def test_a_method_that_needs_source_images_gets_some(own_methods):
    class Needy(registry.find("hoarder")):
        name = "needy"
        declaration = Declaration(needs="embeddings", source_images=32)

        class Options(neotta.adapters.none.Options):
            source: torch.Tensor

        def _start(self):
            seen.append(tuple(self.options.source.shape))

    seen = []
    registry.register(Needy)
    task = {**CONDITIONS, "model": MODEL, "device": "cpu", "dtype": "float64", "threads": None, "modules": []}
    answer = measure({**task, "method": "needy", "options": {}, "preset": "paper"})
    assert seen == [(32, 3, 32, 32)]
    assert len(answer["seconds"]) >= 2
    assert sum(answer["seconds"]) >= 0.5, "a few batches of a small model say nothing"
    assert len(answer["plain_seconds"]) == len(answer["seconds"]), "the plain model is timed in turns with the method"
    assert answer["forward_passes"] == 1, "but its passes are not counted"


def test_the_error_of_a_factor_is_that_of_its_median_over_batches_in_turns():
    quiet = {"seconds": [0.2, 2.0, 20.0], "plain_seconds": [0.1, 1.0, 10.0]}  # the load meets both alike
    assert _slowdown_error([quiet]) == 0
    spread = [{"seconds": [1.0, 1.0, 3.0, 3.0] * 25, "plain_seconds": [1.0] * 100}]
    assert _slowdown_error(spread) == pytest.approx(1.8 * 2 / 10)
    assert _slowdown_error([{"seconds": [1.0], "plain_seconds": [1.0]}]) is None
