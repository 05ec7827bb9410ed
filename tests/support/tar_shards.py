"""Tar files as CCC publishes them, and a server that has some."""

import contextlib
import io
import tarfile

from PIL import Image

from support.data_makers import picture
from support.misbehaving import serving

STREAM = "baseline_20_transition+speed_1000_seed_43"
BOTH = f"/CCC/{STREAM}/serial_{{00000..00001}}.tar"


def jpeg(seed):
    buffer = io.BytesIO()
    Image.fromarray(picture(seed)).save(buffer, "JPEG")
    return buffer.getvalue()


def packed(members):
    """A tar file of (name, content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def shard(samples, kinds=("input.jpg", "output.cls")):
    """A tar file as WebDataset writes it, of (key, seed of the image, label)."""
    return packed(
        (f"{key}.{kind}", content)
        for key, seed, label in samples
        for kind, content in zip(kinds, (jpeg(seed), str(label).encode()), strict=True)
    )


@contextlib.contextmanager
def serving_a_stream(monkeypatch, cache):
    """A stream of two files on a server, with a cache of its own."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    files = {
        f"/CCC/{STREAM}/serial_00000.tar": shard([("0000000", 1, 5), ("0000001", 2, 999)]),
        f"/CCC/{STREAM}/serial_00001.tar": shard([("0000000", 3, 0)]),
    }
    with serving(files) as running:
        yield running
