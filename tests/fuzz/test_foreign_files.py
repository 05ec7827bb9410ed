"""Archives, images, datasets and plans from strangers."""

from __future__ import annotations

import io
import tarfile
import zipfile

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.fuzzing import damaged, fuzz, only_own_errors, strange

from neotta.cli.config import read_config
from neotta.data.decode import decode, probe
from neotta.data.downloads import install
from neotta.data.opening import open_data
from neotta.errors import OptionError
from neotta.evaluate.plan import Plan

PHOTO = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def encoded(kind, mode="RGB"):
    buffer = io.BytesIO()
    Image.fromarray(PHOTO).convert(mode).save(buffer, kind)
    return buffer.getvalue()


KINDS = [("PNG",), ("JPEG",), ("WEBP",), ("BMP",), ("GIF", "P"), ("TIFF",), ("PNG", "RGBA")]
IMAGES = [encoded(*each) for each in KINDS]


@given(data=st.data())
@fuzz(50)
def test_images(data):
    content = data.draw(st.sampled_from(IMAGES).flatmap(damaged))
    for read in (decode, probe):
        with only_own_errors():
            read(content)


def tar(mode):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for number in range(3):
            member = tarfile.TarInfo(f"set/class/{number}.bin")
            member.size = 700
            archive.addfile(member, io.BytesIO(bytes(700)))
    return buffer.getvalue()


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"set/class/{number}.bin", bytes(700))
    return buffer.getvalue()


ARCHIVES = [tar("w"), tar("w:gz"), zipped()]


@given(data=st.data())
@fuzz(25)
def test_archives(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive")
    name = data.draw(st.sampled_from(["x.tar", "x.zip"]))
    (folder / name).write_bytes(data.draw(st.sampled_from(ARCHIVES).flatmap(damaged)))
    with only_own_errors():
        install(folder / name, folder / "set")
    assert {entry.name for entry in folder.iterdir()} <= {name, "set"}


def arrays(**content):
    buffer = io.BytesIO()
    np.savez(buffer, **content)
    return buffer.getvalue()


def array(content):
    buffer = io.BytesIO()
    np.save(buffer, content)
    return buffer.getvalue()


STACK = np.stack([PHOTO] * 4)
LABELS = np.arange(4, dtype=np.uint8)
CIFAR = b"".join(bytes([label]) + bytes(3072) for label in range(4))
DATASETS = {
    "npz": {"x.npz": arrays(images=STACK, labels=LABELS)},
    "cifar-10": {"data_batch_1.bin": CIFAR, "test_batch.bin": CIFAR, "batches.meta.txt": b"a\nb\nc\n"},
    "cifar-10-c": {"fog.npy": array(np.zeros((50, 32, 32, 3), np.uint8)), "labels.npy": array(np.arange(50) % 10)},
    "folder": {"a/1.png": IMAGES[0], "b/1.png": IMAGES[1]},
}


@pytest.mark.parametrize("layout", DATASETS)
@given(data=st.data())
@fuzz(25)
def test_datasets(layout, data, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    victim = data.draw(st.sampled_from(sorted(DATASETS[layout])))
    for name, content in DATASETS[layout].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data.draw(damaged(content)) if name == victim else content)
    with only_own_errors():
        source = open_data(root / "x.npz" if layout == "npz" else root)
        for domain in list(source.domains)[:3]:
            with only_own_errors():
                dataset = source.dataset(domain)
                for index in range(min(3, len(dataset))):
                    with only_own_errors():
                        dataset.read(index)


PLAN = {"model": "digits", "corruptions": ["fog"], "severities": [3], "seeds": [1, 2], "samples": [16]}
PLAN |= {"methods": [{"name": "neo", "options": {"weighting": "sample"}}, "t3a"], "order": "correlated"}
PLAN |= {"order_options": {"delta": 0.1}, "batch_sizes": [8], "model_options": {"a": 1}}
TEXT = tomli_w.dumps(PLAN)


@given(data=st.data())
@fuzz(50)
def test_plans(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_bytes(data.draw(damaged(TEXT.encode())))
    with only_own_errors():
        Plan.make(read_config(path, Plan.model_fields)).runs(["fog/3"])


@given(plan=strange(PLAN))
@fuzz(25)
def test_plans_that_make_no_sense(plan):
    with only_own_errors():
        Plan.make(plan).runs(["fog/3"])


@pytest.mark.parametrize("seeds", [101, 2020, 2**63])
def test_a_plan_cannot_fill_the_memory_with_seeds(seeds):
    with pytest.raises(OptionError, match="the number of seeds is at most 100;"):
        Plan.make({"seeds": seeds})
