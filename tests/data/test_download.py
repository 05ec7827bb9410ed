"""Datasets are fetched from a server on this machine, compared with their checksums, and unpacked safely."""

import dataclasses
import hashlib
import io
import re
import stat
import tarfile
import zipfile

import numpy as np
import pytest
from support.data_makers import cifar10_c, class_folders, corrupted
from support.misbehaving import serving

from neotta.data.corruptions import CORRUPTIONS
from neotta.data.downloads import DATASETS, download, fetch, install
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.errors import DataError, OptionError, UnknownNameError

WNIDS = imagenet_wnids()
NOISE = np.random.default_rng(0).bytes(20_000)
SMALL_SET = [("imagenet-r/n01440764/art_0.jpg", b"...")]


def tar(members, mode="w"):
    """A tar from (name or TarInfo, bytes)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for member, data in members:
            member = tarfile.TarInfo(member) if isinstance(member, str) else member
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def tar_of(folder, name=None):
    """A tar of a folder's content, inside a folder of that name if one is given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, f"{name}/{path.name}" if name else path.name)
    return buffer.getvalue()


def zip_of(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members:
            archive.writestr(member, data)
    return buffer.getvalue()


def link(name, target, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def installed(folder, data):
    """Unpack bytes; returns what was written as {path: bytes}."""
    archive = folder / ("x.zip" if data[:2] == b"PK" else "x.tar")
    archive.write_bytes(data)
    install(archive, folder / "set")
    return {str(p.relative_to(folder / "set")): p.read_bytes() for p in (folder / "set").rglob("*") if p.is_file()}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving({}) as running:
        yield running


@pytest.fixture
def published(server, monkeypatch):
    """Publishes other content: puts it on the server, with its checksum in the table."""

    def publish(name, content, part="all"):
        archive = DATASETS[name][part]
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        changed = dataclasses.replace(archive, checksum=checksum, url=server.url(f"/{archive.file}"))
        monkeypatch.setitem(DATASETS, name, {**DATASETS[name], part: changed})
        server.files[f"/{archive.file}"] = content

    return publish


@pytest.mark.parametrize("make", [tar, lambda members: tar(members, "w:gz"), zip_of])
def test_tar_tar_gz_and_zip(tmp_path, make):
    members = [("a/b.txt", b"one"), ("c.txt", b""), ("a/d/e.bin", bytes(100_000))]
    assert installed(tmp_path, make(members)) == {"a/b.txt": b"one", "c.txt": b"", "a/d/e.bin": bytes(100_000)}


@pytest.mark.parametrize(
    "data",
    [
        tar([("../evil", b"evil")]),
        tar([("a/../../evil", b"evil")]),
        tar([(link("a", "/etc", tarfile.SYMTYPE), b""), ("a/evil", b"evil")]),
        tar([(link("a", "../../evil", tarfile.SYMTYPE), b"")]),
        tar([(link("a", "/etc/passwd", tarfile.LNKTYPE), b"")]),
        tar([(link("a", "", tarfile.FIFOTYPE), b"")]),
        tar([("good", b"1"), (link("a", "", tarfile.CHRTYPE), b"")]),
    ],
)
def test_an_unsafe_tar_is_rejected_and_leaves_no_trace(tmp_path, data):
    with pytest.raises(DataError, match="cannot be unpacked"):
        installed(tmp_path, data)
    assert [path.name for path in tmp_path.rglob("*")] == ["x.tar"]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil"])
def test_members_of_a_zip_stay_in_its_folder(tmp_path, name):
    symlink = zipfile.ZipInfo("link")
    symlink.external_attr = (stat.S_IFLNK | 0o777) << 16
    content = installed(tmp_path, zip_of([("good", b"1"), (name, b"evil"), (symlink, b"/etc")]))
    assert sorted(content.values()) == [b"/etc", b"1", b"evil"], "the link is an ordinary file"
    assert {path.name for path in tmp_path.iterdir()} == {"x.zip", "set"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive at all" * 100,
        b"PK\x03\x04 but no zip",
        b"\x1f\x8b but no gzip",
        tar([("x", NOISE)], "w:gz")[:10_000],
        tar([("x", bytes(20_000))])[:10_000],
        zip_of([("x", NOISE)])[:10_000],
        tar([("a", b"1"), ("a/b", b"2")]),
    ],
)
def test_unreadable_archives_are_rejected(tmp_path, data):
    with pytest.raises(DataError, match="cannot be unpacked"):
        installed(tmp_path, data)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("make", [lambda members: tar(members, "w:gz"), zip_of])
def test_an_archive_that_grows_too_much_is_rejected(tmp_path, monkeypatch, make):
    monkeypatch.setattr("neotta.data.downloads.SMALL", 1_000_000)  # so that the test needs no gigabytes
    with pytest.raises(DataError, match="would grow to more than"):
        installed(tmp_path, make([(f"{number}.bin", bytes(2_000_000)) for number in range(20)]))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("make", [lambda members: tar(members, "w:gz"), zip_of])
def test_an_archive_of_very_many_files_is_rejected(tmp_path, make):
    with pytest.raises(DataError, match=r"more than .* files"):
        installed(tmp_path, make([(f"{number:x}", b"") for number in range(10_000)]))
    assert not (tmp_path / "set").exists()


def test_every_published_archive_has_an_address_and_a_checksum():
    archives = [archive for parts in DATASETS.values() for archive in parts.values()]
    assert len(archives) == 9
    for archive in archives:
        kind, _, digest = archive.checksum.partition(":")
        assert re.fullmatch(rf"[0-9a-f]{{{2 * hashlib.new(kind).digest_size}}}", digest), archive.file
        assert archive.url.startswith("https://")


def test_cifar10_c_from_a_mirror_opens(server, published, tmp_path, capfd):
    made = cifar10_c(tmp_path / "made")
    published("cifar10-c", tar_of(made, "CIFAR-10-C"))
    server.files["/mirror/CIFAR-10-C.tar"] = server.files.pop("/CIFAR-10-C.tar")
    root = download("cifar10-c", tmp_path / "data", mirror=server.url("/mirror/"), progress=True)
    assert root == tmp_path / "data" / "cifar10-c"
    assert [path.name for path in root.parent.iterdir()] == ["cifar10-c"], "the archive is removed"
    assert "100%" in capfd.readouterr().err
    source = open_data(root)
    assert source.layout == "cifar10-c"
    np.testing.assert_array_equal(source.dataset("fog/3").read(1), np.load(made / "fog.npy")[13])


def test_what_is_there_is_not_downloaded_again(server, published, tmp_path):
    published("imagenet-r", tar(SMALL_SET))
    (tmp_path / "imagenet-r").mkdir()  # empty: not yet there
    for _ in range(2):
        root = download("imagenet-r", tmp_path)
        assert (root / "n01440764" / "art_0.jpg").read_bytes() == b"..."
    assert len(server.seen) == 1


def test_imagenet_c_is_put_together_from_its_parts(server, published, tmp_path):
    for part, kinds in {"noise": CORRUPTIONS[:3], "weather": CORRUPTIONS[7:11]}.items():
        published("imagenet-c", tar_of(corrupted(tmp_path / part, kinds, [1, 5], [WNIDS[3]])), part)
    root = download("imagenet-c", tmp_path / "data", parts=["noise"])
    assert open_data(root, domains=["*/1"]).domains == ("gaussian_noise/1", "shot_noise/1", "impulse_noise/1")
    (root / "fog").mkdir()
    (root / "fog" / "mine").write_bytes(b"mine")
    download("imagenet-c", tmp_path / "data", parts=["noise", "weather"])
    assert open_data(root).dataset("snow/1").labels.tolist() == [3, 3]
    assert [path.name for path in (root / "fog").iterdir()] == ["mine"], "what was there stays"
    assert len(server.seen) == 2


def test_imagenet_sketch_is_a_zip(published, tmp_path):
    made = class_folders(tmp_path / "made", WNIDS[:2], name="sketch_{i}.JPEG")
    files = [(f"sketch/{p.relative_to(made).as_posix()}", p.read_bytes()) for p in made.rglob("*.JPEG")]
    published("imagenet-sketch", zip_of(files))
    source = open_data(download("imagenet-sketch", tmp_path / "data"))
    assert (source.layout, len(source.dataset())) == ("imagenet-sketch", 4)


def test_a_mirror_with_other_bytes_is_rejected(server, tmp_path):
    server.files["/cifar-10-binary.tar.gz"] = tar([("cifar-10-batches-bin/test_batch.bin", bytes(3073))], "w:gz")
    with pytest.raises(DataError, match="does not match the known hash: expected md5:c32a1d4ab5d03f1284b67883e8d87530"):
        download("cifar-10", tmp_path, mirror=server.url(""))
    assert list(tmp_path.iterdir()) == []


def test_an_archive_put_there_by_hand_is_used_and_kept(server, published, tmp_path):
    published("imagenet-r", tar(SMALL_SET))
    (tmp_path / "imagenet-r.tar").write_bytes(tar(SMALL_SET))
    root = download("imagenet-r", tmp_path)
    assert (root / "n01440764" / "art_0.jpg").exists()
    assert (tmp_path / "imagenet-r.tar").exists()
    assert not server.seen


def test_a_download_that_breaks_off_leaves_nothing_and_is_fetched_again(server, tmp_path):
    server.files["/x.tar"] = NOISE
    server.cuts, server.statuses = [5000], [200, 503]
    for reason in ("5000 bytes read", "503 Server Error"):
        with pytest.raises(DataError, match=rf"x\.tar cannot be downloaded: .*{reason}"):
            fetch(server.url("/x.tar"), tmp_path / "x.tar")
        assert list(tmp_path.iterdir()) == []
    fetch(server.url("/x.tar"), tmp_path / "x.tar")
    assert (tmp_path / "x.tar").read_bytes() == NOISE
    with pytest.raises(DataError, match="404 Client Error"):
        fetch(server.url("/y.tar"), tmp_path / "y.tar")


def test_wrong_names_are_explained(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'imagenet-r'"):
        download("imagenet-q", tmp_path)
    with pytest.raises(UnknownNameError, match="unknown part of imagenet-c 'blurs': did you mean 'blur'"):
        download("imagenet-c", tmp_path, parts=["blurs"])
    with pytest.raises(OptionError, match="comes in one piece"):
        download("cifar10-c", tmp_path, parts=["fog"])
    with pytest.raises(DataError, match=r"ftp://example\.org/CIFAR-10-C\.tar cannot be downloaded"):
        download("cifar10-c", tmp_path, mirror="ftp://example.org")
