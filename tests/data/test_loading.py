"""Loading: the order's order whatever the workers, unreadable samples left out, deaths reported."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neotta.data import orders
from neotta.data.base import ImageDataset
from neotta.data.loading import InTwoSteps, Loader
from neotta.errors import DataError, InputError, OptionError
from neotta.models.preprocess import Preprocess


class Drawn(ImageDataset):
    """Images made from their number; some cannot be read, one kills whoever reads it."""

    def __init__(self, domain="fog", count=50, *, labels=True, broken=(), deadly=None, side=8):
        self.domain, self.broken, self.deadly, self.side = domain, set(broken), deadly, side
        self.ids = [f"{domain}-{number:03}" for number in range(count)]
        self.labels = np.arange(count) % 7 if labels else None

    def read(self, index):
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.broken:
            raise DataError(f"picture {index} is truncated")
        random = np.random.default_rng([index, len(self.domain)])
        return random.integers(0, 256, (self.side, self.side + 1, 3), dtype=np.uint8)


class InMemory(Drawn):
    in_memory = True


class Crop:
    """A preprocessing in two steps."""

    def pixels(self, image):
        return image[:6, 1:7]

    def normalize(self, x):
        return (x - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1).to(x)) / 0.3

    def __call__(self, image):
        return self.normalize(torch.from_numpy(self.pixels(image).copy()).permute(2, 0, 1).float().div(255))


def plain(image):
    return Crop()(image)


def wrong(image):
    raise ZeroDivisionError("a fault of the preprocessing")


def uncropped(image):
    return torch.from_numpy(image[: 2 + image[0, 0, 0] % 3]).permute(2, 0, 1) / 255


def same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one.images, other.images)
        assert (one.ids, one.domains) == (other.ids, other.domains)
        for a, b in ((one.labels, other.labels), (one.cameras, other.cameras)):
            assert (a is None and b is None) or torch.equal(a, b)


def test_batches_hold_what_the_stream_says():
    datasets = [Drawn("fog", 20), Drawn("rain", 9)]
    order = orders.cameras(datasets, batch_size=8)
    batches = list(Loader(datasets, order, plain, workers=0))
    assert [len(batch) for batch in batches] == [8, 8, 8, 5]
    for batch, part in zip(batches, order.batches(), strict=True):
        assert batch.images.shape == (len(batch), 3, 6, 6)
        assert batch.images.dtype == torch.float32
        assert batch.ids == order.ids[part]
        assert batch.domains == tuple(id.split("-")[0] for id in batch.ids)
        assert batch.labels.tolist() == [int(id.split("-")[1]) % 7 for id in batch.ids]
        assert batch.cameras.tolist() == order.camera[part].tolist()
        for row, id in zip(batch.images, batch.ids, strict=True):
            name, number = id.split("-")
            image = next(d for d in datasets if d.domain == name).read(int(number))
            assert torch.equal(row, plain(image))


@pytest.mark.parametrize("preprocess", [plain, Crop()])
def test_workers_change_nothing(preprocess):
    datasets = {"fog": Drawn("fog", 30, broken=[3, 4]), "rain": Drawn("rain", 30, broken=[0])}
    order = orders.mixed(datasets, batch_size=16)
    results, skipped = [], []
    for workers in (0, 1, 2):
        loader = Loader(datasets, order, preprocess, workers=workers)
        with pytest.warns(UserWarning, match="is skipped"):
            results.append(list(loader))
        skipped.append(loader.skipped)
    same(results[0], results[1])
    same(results[0], results[2])
    assert skipped[0] == skipped[1] == skipped[2]
    assert set(skipped[0]) == {"fog-003", "fog-004", "rain-000"}


def test_both_ways_of_preprocessing_agree():
    dataset = Drawn()
    order = orders.iid(dataset, batch_size=16)
    same(list(Loader(dataset, order, plain)), list(Loader(dataset, order, Crop())))


def test_the_preprocessing_of_models_goes_in_two_steps():
    half = Preprocess(size=(6, 6), resize=7, crop=True, interpolation="bicubic", mean=(0.485, 0.456, 0.406))
    assert isinstance(half, InTwoSteps)
    dataset = Drawn(count=9)
    order = orders.iid(dataset)
    (batch,) = Loader(dataset, order, half)
    assert torch.equal(batch.images, torch.stack([half(dataset.read(index)) for index in order.index]))


@contextlib.contextmanager
def started_by(method):
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method(method, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(usual, force=True)


@pytest.mark.slow
def test_workers_can_be_spawned():
    dataset = Drawn()
    order = orders.iid(dataset, batch_size=16)
    with started_by("spawn"):
        spawned = list(Loader(dataset, order, Crop(), workers=1))
    same(list(Loader(dataset, order, Crop(), workers=0)), spawned)


def test_unreadable_samples_are_skipped_with_one_warning():
    dataset = Drawn(count=20, broken=[2, 5, 11])
    loader = Loader(dataset, orders.iid(dataset, batch_size=10), Crop(), workers=0)
    with pytest.warns(UserWarning, match="'fog-0.*of 'fog' is skipped: picture .* is truncated") as caught:
        first = list(loader)
    assert len(caught) == 1
    assert sum(len(batch) for batch in first) == 17
    assert sorted(loader.skipped) == ["fog-002", "fog-005", "fog-011"]
    same(first, list(loader))  # warns no more, and counts anew
    assert len(loader.skipped) == 3


def test_a_batch_of_which_nothing_can_be_read_is_left_out():
    dataset = Drawn(count=6)
    order = orders.iid(dataset, batch_size=2)
    dataset.broken = set(order.index[2:4].tolist())
    loader = Loader(dataset, order, Crop(), workers=0)
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="is skipped"):
        assert [batch.ids for batch in loader] == [order.ids[:2], order.ids[4:]]


@pytest.mark.parametrize("workers", [0, 1])
def test_other_faults_are_raised(workers):
    dataset = Drawn()
    loader = Loader(dataset, orders.iid(dataset), wrong, workers=workers)
    with pytest.raises(ZeroDivisionError, match="a fault of the preprocessing"):
        list(loader)


def test_unequal_images_are_named():
    dataset = Drawn()
    with pytest.raises(InputError, match=r"equally large, got \(3, \d, 9\) and \(3, \d, 9\)"):
        list(Loader(dataset, orders.iid(dataset), uncropped, workers=0))


def read_what_kills():
    dataset = Drawn(deadly=7)
    try:
        list(Loader(dataset, orders.iid(dataset, batch_size=10), Crop(), workers=2))
    except DataError as error:
        print(error, flush=True)
        os._exit(0)  # torch raises an error wherever this process is when it hears of the death


def test_a_worker_that_dies_is_reported():
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_loading; test_loading.read_what_kills()"
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code, here, here.parent], capture_output=True, text=True)
    assert re.match(r"a process that loads images died: .*workers=0", done.stdout.replace("\n", " ")), done.stderr


def test_an_iteration_can_be_left_and_begun_again():
    dataset = Drawn()
    loader = Loader(dataset, orders.iid(dataset, batch_size=5), Crop(), workers=1)
    first = next(iter(loader))
    same([first], [next(iter(loader))])


def test_the_global_generator_is_left_alone():
    dataset = Drawn()
    before = torch.get_rng_state()
    list(Loader(dataset, orders.iid(dataset, batch_size=10), Crop(), workers=1))
    assert torch.equal(before, torch.get_rng_state())


def test_batch_size_can_be_given():
    dataset = Drawn()
    order = orders.iid(dataset)
    loader = Loader(dataset, order, Crop(), batch_size=20, workers=0)
    assert [len(batch) for batch in loader] == [20, 20, 10]
    assert loader.order.ids == order.ids


def test_labels_are_given_only_where_all_are_known():
    datasets = [Drawn("fog", 10), Drawn("rain", 10, labels=False)]
    order = orders.continual(datasets, samples=10, shuffle=False)
    fog, rain = Loader(datasets, order, Crop(), workers=0)
    assert fog.labels.dtype == torch.int64
    assert rain.labels is None
    (both,) = Loader(datasets, orders.mixed(datasets), Crop(), workers=0)
    assert both.labels is None
    assert both.cameras is None


def test_workers_are_chosen_by_what_there_is_to_do():
    for dataset, batch_size, expected in ((Drawn(), 50, 0), (InMemory(), 5, 0), (Drawn(), 5, 1)):
        loader = Loader(dataset, orders.iid(dataset, batch_size=batch_size), Crop())
        assert (loader.workers > 0) == expected
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert loader.workers <= max(1, cores // 2)


@pytest.mark.slow  # torch imports a lot for its first meta tensor
def test_batches_come_on_the_device_asked_for():
    dataset = Drawn(count=5)
    (batch,) = Loader(dataset, orders.cameras(dataset), Crop(), workers=0, device="meta")
    assert {x.device.type for x in (batch.images, batch.labels, batch.cameras)} == {"meta"}
    assert batch.images.dtype == torch.float32


def test_samples_have_to_be_where_the_stream_says():
    order = orders.iid(Drawn("fog", 10))
    with pytest.raises(DataError, match=r"needs the domain 'fog', but there are only \['rain'\]"):
        Loader(Drawn("rain"), order, Crop())
    with pytest.raises(DataError, match="only 5 samples"):
        Loader(Drawn("fog", 5), order, Crop())
    other = Drawn("fog", 10)
    other.ids = other.ids[::-1]
    with pytest.raises(DataError, match=r"replay its manifest"):
        Loader(other, order, Crop())
    replayed = orders.replay(order.manifest(), other)
    (batch,) = Loader(other, replayed, Crop())
    assert batch.ids == order.ids


@pytest.mark.parametrize(
    "options",
    [{"workers": -1}, {"workers": True}, {"batch_size": 0}],
)
def test_wrong_options_are_named(options):
    dataset = Drawn()
    with pytest.raises(OptionError, match=next(iter(options))):
        Loader(dataset, orders.iid(dataset), Crop(), **options)


def test_an_empty_stream_has_no_batches():
    dataset = Drawn(count=0)
    assert list(Loader(dataset, orders.iid(dataset), Crop())) == []
    assert list(Loader(dataset, orders.iid(dataset), Crop(), workers=1)) == []


class Collecting(Drawn):
    def read(self, index):
        gc.collect()
        return super().read(index)


def test_a_worker_does_not_collect_what_its_parent_left(tmp_path):
    class Left:
        """Garbage whose destructor would wait for ever in a process without the threads of its parent."""

        def __init__(self):
            self.itself, self.owner = self, os.getpid()

        def __del__(self):
            if os.getpid() != self.owner:
                (tmp_path / "collected").touch()

    dataset = Collecting(count=8)
    gc.collect()
    gc.disable()
    try:
        Left()
        with started_by("fork"):
            list(Loader(dataset, orders.iid(dataset, batch_size=4), Crop(), workers=1))
    finally:
        gc.enable()
    assert not (tmp_path / "collected").exists()
