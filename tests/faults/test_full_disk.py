"""A disk of a few hundred kilobytes that fills up: the old stays, the new is rejected with the package's own error."""

from __future__ import annotations

import contextlib
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from support.faults import Process, small_disk
from torch import nn

import neotta
from neotta.data.corrupted import corrupt_folder
from neotta.data.downloads import install
from neotta.errors import DataError, StorageError
from neotta.evaluate.records import Record, Records, write_records

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 1_000_000) as folder:
        yield folder


def adapted(step, features=8):
    model = neotta.adapt(nn.Sequential(nn.Linear(features, 3)), "neo")
    model(torch.full((step, features), float(step)))
    return model


def fill(disk, leave):
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            filler.truncate(max(0, filler.tell() - leave))


@pytest.mark.parametrize("leave", [0, 4096, 8192, 40_000])
def test_a_state(disk, leave):
    neotta.save(adapted(1, 5000), disk / "state")
    before = (disk / "state").read_bytes()
    fill(disk, leave)
    with pytest.raises(StorageError, match="No space left"):
        neotta.save(adapted(2, 5000), disk / "state")
    assert (disk / "state").read_bytes() == before
    assert sorted(entry.name for entry in disk.iterdir()) == ["filler", "state"]
    (disk / "filler").unlink()
    neotta.save(adapted(3, 5000), disk / "state")
    assert neotta.head(_loaded(disk / "state")).count == 3


def _loaded(path):
    model = nn.Sequential(nn.Linear(5000, 3))
    neotta.load(model, path, strict=False)
    return model


def test_records(disk):
    path, number = disk / "r.jsonl", 0
    with contextlib.suppress(StorageError):
        for number in range(10_000):
            Records(path).append(Record.make({"key": str(number), "padding": "x" * 3000}))
    assert 10 < number < 5000
    assert [record.key for record in Records(path).read()] == [str(each) for each in range(number)]
    with pytest.raises(StorageError):
        write_records([Record(key=str(each), padding="x" * 3000) for each in range(1000)], path)
    assert len(Records(path).read()) == number


def test_streams(disk):
    (disk / "filler").write_bytes(bytes(600_000))
    told = Process(lambda tell: _move_out(disk / "streams", tell)).wait()
    assert len(told) > 5
    (disk / "filler").unlink()
    Process(lambda tell: _read_streams(disk / "streams", len(told))).wait()


@torch.no_grad()
def _move_out(folder, tell):
    """Streams are moved to the disk until it is full; whatever was moved before that is there."""
    model = _many(folder)
    for step in range(10_000):
        try:
            with neotta.streams([step]):
                model(torch.full((1, 500), float(step)))
        except StorageError:
            return
        tell(step)
    raise AssertionError("the disk was never full")


def _read_streams(folder, told):
    streams = neotta.head(_many(folder)).streams
    found = streams.counts()
    assert len(found) >= told - 2, "all but the two in memory"
    for name in found:
        assert torch.equal(streams.rule.offset(streams.state(name))[0], torch.full((500,), float(name)).double())


def _many(folder):
    torch.manual_seed(0)
    return neotta.adapt(nn.Sequential(nn.Linear(500, 2)), "neo", streams=True, capacity=2, folder=folder)


def test_an_archive(disk, tmp_path):
    content = tmp_path / "content"
    content.mkdir()
    for number in range(200):
        (content / f"{number}.bin").write_bytes(bytes(10_000))
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(content, "set")
    with pytest.raises(DataError, match="No space left"):
        install(tmp_path / "set.tar", disk / "set")
    assert list(disk.iterdir()) == []


def test_a_corrupted_copy(disk, tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(8):
        noise = np.random.default_rng(number).integers(0, 256, (128, 128, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "photos" / f"{number}.png")
    with pytest.raises(OSError, match="No space left"):
        corrupt_folder(tmp_path / "photos", disk / "out", ["fog", "brightness"], jobs=1)
    for path in (disk / "out").rglob("*.JPEG"):
        with Image.open(path) as image:
            image.load()  # what is there is whole
