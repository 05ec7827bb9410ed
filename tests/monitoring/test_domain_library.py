from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import neotta
from neotta import DomainLibrary
from neotta.errors import InputError, ModelError, OptionError, StateFileError, StateMismatchError, UnknownNameError
from neotta.neo.statefile import write_state

D = 4


def model(centre=0.0, method="neo", weights=0, samples=50, **options):
    torch.manual_seed(weights)
    net = neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(D, 3)).eval(), method, head="1", **options)
    torch.manual_seed(1)
    net(centre + torch.randn(samples, D))
    return net


def test_what_is_added_comes_back(tmp_path):
    library = DomainLibrary(tmp_path / "new" / "folder")
    assert library.names() == []
    net = model(3.0)
    fog = library.add("fog", net)
    head = neotta.head(net)
    assert torch.equal(fog.offset, head.offset())
    assert (fog.name, fog.count) == ("fog", 50)
    assert math.isnan(fog.variance)
    assert library.names() == ["fog"]
    assert "fog" in library
    assert len(library) == 1
    again = DomainLibrary(library.folder)["fog"]
    assert torch.equal(again.offset, fog.offset)
    assert again.fingerprint == fog.fingerprint


def test_files_of_save_are_domains_and_domains_can_be_loaded(tmp_path):
    net = model(2.0, shrinkage="james-stein")
    neotta.save(net, tmp_path / "rain.safetensors")
    library = DomainLibrary(tmp_path)
    rain = library["rain"]
    assert rain.variance == pytest.approx(4, rel=0.3)
    fresh = model(shrinkage="james-stein", samples=0)
    neotta.load(fresh, tmp_path / "rain.safetensors")
    assert torch.equal(neotta.head(fresh).streams.table, rain.state)


def test_adapters_and_monitors_can_be_added(tmp_path):
    library = DomainLibrary(tmp_path)
    plain = neotta.restore(model())
    adapter = neotta.create("neo", plain, head="1")
    adapter.predict_embeddings(torch.full((3, D), 2.0))
    assert torch.equal(library.add("adapter", adapter).offset, torch.full((D,), 2.0, dtype=torch.float64))
    net = model(samples=0)
    monitor = neotta.Monitor(net)
    net(5 + torch.randn(60, D))
    known = library.add("monitor", monitor)
    assert (known.count, known.variance) == (60, pytest.approx(4, rel=0.4))
    assert known.fingerprint == library["adapter"].fingerprint
    other = neotta.restore(model())
    neotta.load(other, tmp_path / "monitor.safetensors")
    assert torch.equal(neotta.head(other).offset(), known.offset)
    neotta.merge([tmp_path / "monitor.safetensors", net])  # it is a state like any other
    with pytest.raises(OptionError, match="no model"):
        library.add("loose", neotta.Monitor())


@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_the_centroid_of_a_moving_average_is_what_the_model_subtracts(tmp_path, kind):
    options = {"method": "neo-continual", "alpha": 0.1, "debias": True}
    net = model(2.0, samples=5, **options)
    centre = neotta.head(net).offset()
    if kind == "adapter":
        adapter = neotta.create(options.pop("method"), neotta.restore(net), head="1", **options)
        torch.manual_seed(1)
        adapter.predict_embeddings(2.0 + torch.randn(5, D))
        net = adapter
    torch.testing.assert_close(DomainLibrary(tmp_path).add("here", net).offset, centre)


def test_one_stream_of_many_is_a_domain(tmp_path):
    torch.manual_seed(0)
    many = neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(D, 3)).eval(), "neo", head="1", streams=True)
    with neotta.streams(["a", "b", "b"]):
        many(torch.arange(3.0 * D).reshape(3, D))
    library = DomainLibrary(tmp_path)
    known = library.add("yard", many, stream="b")
    assert (known.count, known.offset.tolist()) == (2, [6.0, 7.0, 8.0, 9.0])
    with pytest.raises(InputError, match="stream='gate'"):
        library.add("all", many)
    with pytest.raises(InputError, match="no stream 'x'"):
        library.add("x", many, stream="x")
    assert library.names() == ["yard"]
    neotta.save(many, tmp_path / "all.safetensors")
    with pytest.raises(StateMismatchError, match="many streams"):
        library["all"]
    with pytest.raises(OptionError, match="a Monitor has one state"):
        library.add("x", neotta.Monitor(many, stream="a"), stream="a")


def test_the_nearest_domain_is_found_by_distance(tmp_path):
    library = DomainLibrary(tmp_path)
    assert library.nearest(torch.zeros(D)) is None
    for name, centre in (("here", 1.0), ("there", 5.0)):
        library.add(name, model(centre))
    near = library.nearest(torch.full((D,), 4.0))
    there = library["there"].offset
    assert near.domain == "there"
    assert near.distance == pytest.approx(float((there - 4.0).norm()))
    assert near.cosine == pytest.approx(float(there.mean() / there.square().mean().sqrt()))
    assert math.isnan(near.ratio)
    assert library.nearest(torch.zeros(D), fingerprint="of another model") is None
    with pytest.raises(InputError, match="another model"):
        library.nearest(torch.zeros(D + 1))


def test_a_domain_can_be_replaced_and_removed(tmp_path):
    library = DomainLibrary(tmp_path)
    library.add("fog", model(1.0))
    first = library["fog"].offset
    library.add("fog", model(9.0, samples=51))
    assert not torch.equal(library["fog"].offset, first)
    library.remove("fog")
    assert library.names() == []
    for call in (library.remove, library.__getitem__):
        with pytest.raises(UnknownNameError, match="domain"):
            call("fog")


def test_files_that_are_no_domains_are_warned_of_and_left_out(tmp_path):
    library = DomainLibrary(tmp_path)
    library.add("good", model())
    (tmp_path / "garbage.safetensors").write_bytes(b"no safetensors at all")
    whole = (tmp_path / "good.safetensors").read_bytes()
    (tmp_path / "torn.safetensors").write_bytes(whole[:-8])
    write_state(tmp_path / "other.safetensors", {"embeddings": torch.zeros(2, D)}, {"kind": "embeddings"})
    about = {"kind": "model", "method": "neo", "heads": {"1": ""}, "options": {}}
    write_state(tmp_path / "empty.safetensors", {}, about)
    bad = {f"1.{part}": torch.tensor(3.0) for part in ("weight", "square")}
    bad["1.tallies"] = torch.ones(3)
    bad["1.total"] = torch.tensor([math.nan] * D)
    write_state(tmp_path / "nan.safetensors", bad, about)
    with pytest.warns(RuntimeWarning, match="skipped") as warned:
        assert library.names() == ["good"]
    assert len(warned) == 5
    for name in ("garbage", "torn"):
        with pytest.raises(StateFileError, match=name):
            library[name]
    for name in ("other", "empty", "nan"):
        with pytest.raises(StateMismatchError, match=name):
            library[name]


def test_a_model_with_two_heads_is_no_domain(tmp_path):
    two = neotta.adapt(nn.ModuleDict({"a": nn.Linear(D, 2), "b": nn.Linear(D, 2)}), "neo", head=["a", "b"])
    with pytest.raises(ModelError, match="2 heads"):
        DomainLibrary(tmp_path).add("both", two)
    neotta.save(two, tmp_path / "both.safetensors")
    with pytest.raises(StateMismatchError, match="2 heads"):
        DomainLibrary(tmp_path)["both"]


@pytest.mark.parametrize("name", ["", 3, ".hidden", "a/b", "../up", "a\\b", "nul\0"])
def test_names_that_are_no_file_names_are_refused(tmp_path, name):
    with pytest.raises(OptionError, match="name of a domain"):
        DomainLibrary(tmp_path).add(name, model())
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_library(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is a file"):
        DomainLibrary(tmp_path / "file")


def test_domains_of_other_models_are_ignored_by_a_monitor(tmp_path):
    library = DomainLibrary(tmp_path)
    library.add("mine", model(1.0))
    library.add("foreign", model(2.0, weights=7))
    monitor = neotta.Monitor(model(), library)
    monitor.observe(torch.randn(10, D))
    assert [near.domain for near in monitor.status().domains] == ["mine"]
    assert "foreign" in library.names()
