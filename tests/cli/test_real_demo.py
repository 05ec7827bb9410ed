"""The demonstration of a real shift: its numbers, its page, its command."""

from __future__ import annotations

import pytest
import torch
from support.registered import forget_afterwards

import neotta
from neotta.adapters.registry import find, methods
from neotta.data import digits, open_data
from neotta.models.load import load_model
from neotta.report import real_demo
from neotta.report.real_demo import real_demo_page

SAMPLES = 64


@pytest.fixture
def fast(monkeypatch):
    """Fewer methods: each has tests of its own."""
    monkeypatch.setattr(real_demo, "methods", lambda: ("none", "neo", "neo-bn", "bn", "foa", "lame", "tent"))


def test_the_model_was_trained_on_other_images():
    loaded = load_model("mnist")
    assert loaded.labels == tuple("0123456789")
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) < 80_000
    data = open_data("digits-all").dataset()
    assert len(data) == 1797
    assert sorted(data.ids) == sorted([*digits("train").ids, *digits("test").ids])


def test_a_method_of_ones_own_has_its_title(monkeypatch):
    class Own(find("neo")):
        name, title = "own", "Our own"

    forget_afterwards(monkeypatch)
    neotta.register(Own)
    monkeypatch.setattr(real_demo, "methods", lambda: ("none", "own"))
    found = real_demo.run(samples=SAMPLES)
    assert [(result.name, result.title) for result in found.results] == [("none", "No adaptation"), ("own", "Our own")]


def test_every_method_that_applies_is_measured_and_ranked(fast):
    told = []
    found = real_demo.run(samples=SAMPLES, on_method=lambda *event: told.append(event))
    assert [event[0] for event in told] == ["No adaptation", "NEO", "LAME", "TENT"]
    assert found.plain.name == "none"
    assert {result.name for result in found.results} == {"none", "neo", "lame", "tent"}
    accuracies = [result.accuracy for result in found.results[1:]]
    assert accuracies == sorted(accuracies, reverse=True)
    assert set(found.left_out) == {"neo-bn", "bn", "foa"}
    assert "needs 32 clean images" in found.left_out["foa"], "images of the other collection are never taken"
    assert 96 < found.source_accuracy < 97
    for result in found.results[1:]:
        gap = result.difference
        assert result.accuracy - found.plain.accuracy == pytest.approx(gap.mean)
    words = found.summary()
    counts = [found.count(verdict) for verdict in ("helps", "hurts", "can't tell")]
    assert sum(counts) == 3
    assert f"{counts[0]} help and {counts[1]} hurt" in words


def test_the_page_shows_every_result_and_reason(fast):
    found = real_demo.run(samples=SAMPLES)
    page = real_demo_page(found, seconds=2.0)
    for result in found.results:
        assert result.title in page
        assert result.gain in page
    assert all(name in page for name in found.left_out)
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<tr") == 1 + len(found.results)


@pytest.mark.slow
def test_neo_wins_back_much_of_what_the_shift_costs():
    """A finding, pinned: if it changes, the documentation has to."""
    loaded = load_model("mnist")
    data = open_data("digits-all").dataset()
    right = {}
    for method in ("none", "neo"):
        adapter = neotta.create(method, loaded.model)
        images = torch.stack([loaded.preprocess(data.read(index)) for index in range(len(data))])
        answers = torch.cat([adapter(part).argmax(dim=1) for part in images.split(64)])
        right[method] = float((answers.numpy() == data.labels).mean())
    assert right["none"] == pytest.approx(0.344, abs=0.01)
    assert right["neo"] > right["none"] + 0.2


def test_the_command_writes_the_page(command, tmp_path, fast):
    done = command("demo", "--real", "--samples", str(SAMPLES), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "No adaptation" in done.stdout
    assert "neotta-demo-real.html" in done.stdout
    assert (tmp_path / "neotta-demo-real.html").is_file()
    assert len(methods()) > 15, "the real list is longer"
