"""Forms that are added from outside."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.deploy_models import LABELS, PREPROCESS, network, started
from torch import nn

import neotta
from neotta.deploy import export, register_exporter
from neotta.deploy.onnx.export import EXPORTERS
from neotta.errors import OptionError, UnknownNameError


@pytest.fixture
def forms(monkeypatch):
    """Forms that are registered in a test are forgotten after it."""
    list(EXPORTERS)  # the package's own are there
    monkeypatch.setattr(EXPORTERS, "_things", dict(EXPORTERS._things))


@pytest.mark.usefixtures("forms")
def test_a_form_of_ones_own_gets_everything_there_is_to_know(tmp_path):
    @register_exporter("bias")
    def write(job):
        plain = neotta.head(job.model).folded()
        save_file({"bias": plain.bias.detach()}, job.path)
        jobs.append(job)

    jobs, model = [], started(network())
    export(neotta.LoadedModel(model, PREPROCESS, tuple(LABELS), "mine"), tmp_path / "b", form="bias", verify=False)
    (job,) = jobs
    assert (job.name, job.labels, job.preprocess, job.verify) == ("mine", tuple(LABELS), PREPROCESS, False)
    assert torch.equal(load_file(tmp_path / "b")["bias"], neotta.head(model).folded().bias)
    assert list(EXPORTERS) == ["folded", "adaptive", "bias"]


@pytest.mark.usefixtures("forms")
def test_a_form_gets_the_stream_that_was_asked_for(tmp_path):
    counts = []
    register_exporter("count")(lambda job: counts.append(neotta.head(job.model).count))
    model = neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), "neo", streams=True)
    with neotta.streams(["a", "a", "b"]):
        model(torch.randn(3, 3, 2, 2))
    for stream in "ab":
        export(model, tmp_path / "x", form="count", stream=stream)
    assert counts == [2, 1]
    assert neotta.head(model).count == 3


def test_a_form_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text("def write(job): job.path.write_text(job.name)\nconstant = 3\n")
    export(network(), tmp_path / "out.txt", form=f"py:{tmp_path}/mine.py:write")
    assert (tmp_path / "out.txt").read_text() == "Sequential"
    with pytest.raises(OptionError, match="expected a function of an ExportJob"):
        export(network(), tmp_path / "out.txt", form=f"py:{tmp_path}/mine.py:constant")
    with pytest.raises(UnknownNameError, match="did you mean 'folded'"):
        export(network(), tmp_path / "out.txt", form="foldet")
