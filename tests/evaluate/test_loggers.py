"""What a record holds reaches MLflow, Weights & Biases and TensorBoard, through their own packages."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pytest
from support.answered import packed

from neotta.errors import MissingExtraError, OptionError
from neotta.evaluate.loggers import KINDS, logging_to, open_logger
from neotta.evaluate.loggers.entries import entries

RIGHT = np.array([1] * 8 + [1, 0] * 4, dtype=bool)  # two batches of eight
RECORD = {
    "key": "0123456789abcdef",
    "status": "ok",
    "method": "tent",
    "options": {"lr": 0.001, "steps": 1},
    "preset": "paper",
    "model": "digits",
    "data": "digits",
    "weights": "w" * 64,
    "code": "c" * 64,
    "domain": "fog/5",
    "domains": ["fog/5"],
    "seed": 7,
    "batch_size": 8,
    "samples": 16,
    "count": 16,
    "seconds": 1.5,
    "metrics": {"top1": 75.0, "ece": 0.25},
    "reliability": {"samples": [1, 2]},
    "answers": packed(RIGHT, seed=7),
}
FAILED = {name: RECORD[name] for name in ("method", "domain", "seed")} | {"key": "f" * 16, "status": "failed"}


def test_a_record_in_parts():
    found = entries(RECORD)
    assert found.name == "tent fog/5 seed 7"
    assert found.settings["options.lr"] == "0.001"
    assert (found.settings["weights"], found.settings["code"]) == ("w" * 64, "c" * 64)
    assert found.numbers == {"metrics.top1": 75.0, "metrics.ece": 0.25, "count": 16, "seconds": 1.5}
    assert found.curve == [100.0, 50.0]
    assert json.loads(found.whole) == RECORD
    assert "answers" not in found.settings
    assert entries(FAILED).curve == []


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    with logging_to([f"tensorboard:{tmp_path}"]) as log:
        log(RECORD)
    (folder,) = tmp_path.iterdir()
    assert folder.name == "tent_fog-5_seed_7_01234567"
    scalars, texts = {}, {}
    for event in events(folder):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
            elif value.tensor.string_val:
                texts[value.tag.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()
    assert scalars == {
        "metrics/top1": {0: 75.0}, "metrics/ece": {0: 0.25}, "count": {0: 16.0}, "seconds": {0: 1.5},
        "accuracy_by_batch": {1: 100.0, 2: 50.0},
    }  # fmt: skip
    assert texts["settings/options.lr"] == "0.001"
    assert json.loads(texts["record"].strip("`").removeprefix("json")) == RECORD


def events(folder):
    """The events in a file of TensorBoard: each is a length, its checksum, the message, and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    data, at = path.read_bytes(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        yield Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size


@pytest.mark.slow
def test_mlflow(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="a local store of MLflow needs sqlalchemy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's own
        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        with logging_to([f"mlflow:{uri}"]) as log:
            log(RECORD)
            log(FAILED)
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        runs = client.search_runs([client.get_experiment_by_name("neotta").experiment_id])
        found = {run.data.tags["neotta.key"]: run for run in runs}
        run = found[RECORD["key"]]
        assert run.data.params["options.lr"] == "0.001"
        assert run.data.metrics["metrics.top1"] == 75.0
        steps = client.get_metric_history(run.info.run_id, "accuracy_by_batch")
        assert [(each.step, each.value) for each in steps] == [(1, 100.0), (2, 50.0)]
        assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["record.json"]
        assert (run.info.status, found[FAILED["key"]].info.status) == ("FINISHED", "FAILED")


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with logging_to(["wandb:team/study"]) as log:
            log(RECORD)
        wandb.teardown()  # waits for its own process, which writes
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = written.read_bytes()
    for text in (
        b"tent fog/5 seed 7",
        b"options.lr",
        b"metrics.top1",
        b"accuracy_by_batch",
        RECORD["weights"].encode(),
    ):
        assert text in content


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("neptune:x", "there is no logger 'neptune'"),
        ("tensorboard", "has to say where to log to: tensorboard:FOLDER"),
        ("mlflow:", "mlflow:URI"),
    ],
)
def test_loggers_that_cannot_be_had(spec, said):
    with pytest.raises(OptionError, match=said):
        open_logger(spec)


@pytest.mark.parametrize(
    ("kind", "package"), [("mlflow", "mlflow"), ("wandb", "wandb"), ("tensorboard", "tensorboardX")]
)
def test_a_missing_package_is_named(monkeypatch, kind, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"neotta\[{kind}\]"):
        open_logger(f"{kind}:somewhere")


class Broken:
    """A logger whose server goes away after the first record."""

    def __init__(self, where):
        self.seen = []

    def log(self, record):
        self.seen.append(record["key"])
        if len(self.seen) > 1:
            raise ConnectionError("the server is gone\nand more")

    def close(self):
        raise AssertionError("a logger that failed is left alone")


def test_a_logger_that_fails_is_left_alone_with_a_warning(monkeypatch):
    made = Broken("")
    monkeypatch.setitem(KINDS, "broken", lambda where: made)
    with logging_to(["broken:here"]) as log:
        log(RECORD)
        with pytest.warns(
            RuntimeWarning, match=r"broken:here gets no more records \(ConnectionError: the server is gone\)"
        ):
            log(FAILED)
        log(RECORD)
    assert made.seen == [RECORD["key"], FAILED["key"]]
