"""Archives are unpacked whole and inside their folder; `download` puts the steps together."""

import dataclasses
import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data_makers import cifar10_c, class_folders, corrupted
from support.loopback import serving

from neotta.data.downloads import download
from neotta.data.downloads.fetch import SPARE
from neotta.data.downloads.published import DATASETS, find
from neotta.data.downloads.unpack import MARKER, ArchiveError, _check, install, unpack
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.errors import DataError, OptionError, UnknownNameError

WNIDS = imagenet_wnids()
NOISE = np.random.default_rng(0).bytes(20_000)


def tar(members, mode="w"):
    """A tar from (name or TarInfo, bytes)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for member, data in members:
            member = tarfile.TarInfo(member) if isinstance(member, str) else member
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def tar_of(folder, name=None, mode="w"):
    """A tar of a folder's content, inside a folder of that name if one is given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
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


def zip_link(name):
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


def unpacked(tmp_path, data):
    """Unpack bytes; returns what was written as {path: bytes}."""
    (tmp_path / "archive").write_bytes(data)
    folder = tmp_path / "out"
    folder.mkdir()
    unpack(tmp_path / "archive", folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("make", [tar, lambda m: tar(m, "w:gz"), zip_of])
def test_tar_tar_gz_and_zip(tmp_path, make):
    members = [("a/b.txt", b"one"), ("c.txt", b""), ("a/d/e.bin", bytes(100_000))]
    assert unpacked(tmp_path, make(members)) == {"a/b.txt": b"one", "c.txt": b"", "a/d/e.bin": bytes(100_000)}


def test_folders_and_dots_in_names_are_harmless(tmp_path):
    folder = tarfile.TarInfo("./deep/")
    folder.type = tarfile.DIRTYPE
    assert unpacked(tmp_path, tar([(folder, b""), ("./deep/x", b"1")])) == {"deep/x": b"1"}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..", "a\\..\\..\\evil", "C:evil", "./C:evil"])
@pytest.mark.parametrize("make", [tar, zip_of])
def test_members_that_would_escape_are_refused(tmp_path, name, make):
    with pytest.raises(DataError, match="would be written outside the folder"):
        unpacked(tmp_path, make([(name, b"evil")]))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive", "out"]


@given(st.text(alphabet="./\\:aC ~\0é", max_size=12))
def test_a_member_is_inside_the_folder_or_refused(name):
    folder = Path("/some/folder")
    try:
        _check(name, 0, plain=True, folder=Path())
    except DataError:
        return
    path = PurePosixPath(name)
    assert Path(os.path.normpath(folder / path)).is_relative_to(folder)
    assert (PureWindowsPath("C:/some/folder") / path).is_relative_to("C:/some/folder")


@pytest.mark.parametrize(
    "data",
    [
        tar([(link("a", "/etc", tarfile.SYMTYPE), b""), ("a/evil", b"evil")]),
        tar([(link("a", "../../evil", tarfile.SYMTYPE), b"")]),
        tar([(link("a", "/etc/passwd", tarfile.LNKTYPE), b"")]),
        tar([(link("a", "", tarfile.FIFOTYPE), b"")]),
        tar([(link("a", "", tarfile.CHRTYPE), b"")]),
        zip_of([(zip_link("a"), b"/etc")]),
    ],
)
def test_links_and_devices_are_refused(tmp_path, data):
    with pytest.raises(DataError, match="is a link or a device"):
        unpacked(tmp_path, data)
    assert list((tmp_path / "out").iterdir()) == []


def test_permissions_in_the_archive_do_not_count(tmp_path):
    member = tarfile.TarInfo("run-me")
    member.mode = 0o6777
    unpacked(tmp_path, tar([(member, b"#!")]))
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "out" / "run-me").stat().st_mode == (tmp_path / "plain").stat().st_mode


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
    ],
)
def test_unreadable_archives_are_refused(tmp_path, data):
    with pytest.raises(DataError, match="cannot be read"):
        unpacked(tmp_path, data)


def test_a_tar_that_is_damaged_or_cut_between_members_is_refused(tmp_path):
    whole = tar([("x/1", NOISE), ("x/2", NOISE), ("x/3", NOISE)])
    second = 512 + 40 * 512  # 20,000 bytes fill 40 blocks
    damaged = {
        "bad header": whole[:second] + b"\xff" * 100 + whole[second + 100 :],
        "zeros for a header": whole[:second] + bytes(512) + whole[second + 512 :],
        "cut at a member": whole[:second],
        "cut in a header": whole[: second + 100],
    }
    for number, (how, data) in enumerate(damaged.items()):
        for packed in (data, gzip.compress(data)):
            place = tmp_path / f"{number} {len(packed)}"
            place.mkdir()
            with pytest.raises(DataError, match="damaged or truncated"):
                pytest.fail(f"{how}: {unpacked(place, packed)}")


def test_a_tar_is_not_taken_for_a_zip_by_the_name_of_its_first_member(tmp_path):
    assert unpacked(tmp_path, tar([("PKs/1.jpg", b"1")])) == {"PKs/1.jpg": b"1"}


def test_a_damaged_zip_member_is_found_by_its_checksum(tmp_path):
    data = bytearray(zip_of([("x", NOISE)]))
    data[len(data) // 2] ^= 1
    with pytest.raises(DataError, match="cannot be read"):
        unpacked(tmp_path, bytes(data))


def test_a_file_in_the_place_of_a_folder_is_an_error_not_a_crash(tmp_path):
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpacked(tmp_path, tar([("a", b"1"), ("a/b", b"2")]))


def test_a_member_larger_than_the_disk_is_refused(tmp_path):
    member = tarfile.TarInfo("huge")
    member.size = 1 << 60
    with pytest.raises(DataError, match="no room on the disk"):
        unpacked(tmp_path, member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))


@pytest.mark.parametrize("make", [lambda members: tar(members, "w:gz"), zip_of])
def test_an_archive_that_grows_too_much_is_refused_before_it_fills_the_disk(tmp_path, monkeypatch, make):
    monkeypatch.setattr("neotta.data.downloads.unpack._FREE", 1_000_000)  # so that the test needs no gigabytes
    with pytest.raises(ArchiveError, match="would become more than"):
        unpacked(tmp_path, make([(f"{number}.bin", bytes(2_000_000)) for number in range(20)]))
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*")) < 20_000_000


@pytest.mark.parametrize("make", [tar, zip_of])
def test_an_archive_leaves_room_on_the_disk(tmp_path, monkeypatch, make):
    room = shutil.disk_usage(tmp_path)._replace(free=SPARE + 150_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: room)
    with pytest.raises(DataError, match="no room on the disk"):
        unpacked(tmp_path, make([("1", bytes(100_000)), ("2", bytes(200_000))]))
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*"))
    assert written <= (100_000 if make is tar else 0)  # a zip says at once how much it holds


def test_an_archive_of_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("neotta.data.downloads.unpack._MOST_MEMBERS", 10)
    assert len(unpacked(tmp_path, tar([(str(number), b"") for number in range(10)]))) == 10
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(ArchiveError, match="holds more than 10 files"):
        unpacked(tmp_path, tar([(str(number), b"") for number in range(11)]))


def test_every_published_archive_has_a_checksum():
    archives = [archive for dataset in DATASETS.values() for archive in dataset.archives.values()]
    assert len(archives) == 9
    for archive in archives:
        kind, _, digest = archive.checksum.partition(":")
        assert len(bytes.fromhex(digest)) == hashlib.new(kind).digest_size, archive.file


def test_a_refused_archive_leaves_no_trace(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar([("set/good", b"1"), ("../evil", b"2")]))
    with pytest.raises(DataError):
        install(tmp_path / "x.tar", tmp_path / "set", "x.tar", inside_folder=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_leftovers_of_an_interrupted_attempt_are_replaced(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar([("fog/1", b"1"), ("snow/1", b"2")]))
    (tmp_path / ".set.x.tar.unpacking" / "content" / "half").mkdir(parents=True)
    (tmp_path / "set" / "fog").mkdir(parents=True)
    (tmp_path / "set" / MARKER).write_text('{"x.tar": {"entries": ["fog", "snow"], "done": false}}')
    install(tmp_path / "x.tar", tmp_path / "set", "x.tar", inside_folder=False)
    assert (tmp_path / "set" / "fog" / "1").read_bytes() == b"1"
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [MARKER, "fog", "snow"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "x.tar"]


def test_what_somebody_else_put_there_is_not_overwritten(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar([("fog/1", b"1")]))
    (tmp_path / "set" / "fog").mkdir(parents=True)
    (tmp_path / "set" / "fog" / "mine").write_bytes(b"mine")
    with pytest.raises(DataError, match="holds 'fog' already"):
        install(tmp_path / "x.tar", tmp_path / "set", "x.tar", inside_folder=False)
    assert (tmp_path / "set" / "fog" / "mine").read_bytes() == b"mine"


@pytest.fixture
def unpublished(monkeypatch):
    """Archives that the tests made: the published checksums are of others."""
    for name in ("imagenet-r", "imagenet-sketch"):
        archives = {"all": dataclasses.replace(DATASETS[name].archives["all"], checksum=None)}
        monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], archives=archives))


@pytest.fixture
def server(monkeypatch, unpublished):
    monkeypatch.setenv("no_proxy", "*")
    with serving({}) as running:
        yield running


def test_cifar10_c_from_a_mirror_opens(server, tmp_path):
    made = cifar10_c(tmp_path / "made")
    server.files["/mirror/CIFAR-10-C.tar"] = tar_of(made, "CIFAR-10-C")
    steps = set()
    root = download(
        "cifar10-c",
        tmp_path / "data",
        mirror=server.url("/mirror/"),
        verify=False,
        progress=lambda what, done, total: steps.add(what),
    )
    assert root == tmp_path / "data" / "cifar10-c"
    assert sorted(path.name for path in root.parent.iterdir()) == ["cifar10-c"]
    assert steps == {"downloading CIFAR-10-C.tar", "unpacking CIFAR-10-C.tar"}
    source = open_data(root)
    assert source.layout == "cifar10-c"
    np.testing.assert_array_equal(source.dataset("fog/3").read(1), np.load(made / "fog.npy")[13])


def test_what_is_there_is_not_downloaded_again_unless_it_was_removed(server, tmp_path):
    server.files["/imagenet-r.tar"] = tar_of(
        class_folders(tmp_path / "made", WNIDS[:2], name="art_{i}.jpg"), "imagenet-r"
    )
    for _ in range(2):
        root = download("imagenet-r", tmp_path / "data", mirror=server.url(""))
        assert open_data(root).class_indices == (0, 1)
    assert len(server.seen) == 1
    shutil.rmtree(root / WNIDS[0])
    download("imagenet-r", tmp_path / "data", mirror=server.url(""))
    assert open_data(root).class_indices == (0, 1)
    assert len(server.seen) == 2


def test_imagenet_c_is_put_together_from_its_parts(server, tmp_path):
    for part, names in {"weather": ["fog", "snow"], "noise": ["shot_noise"]}.items():
        made = corrupted(tmp_path / part, names, [1, 5], [WNIDS[3]])
        server.files[f"/{part}.tar"] = tar_of(made)
    root = download("imagenet-c", tmp_path / "data", mirror=server.url(""), parts=["noise"], verify=False)
    assert open_data(root).domains == ("shot_noise/1", "shot_noise/5")
    download("imagenet-c", tmp_path / "data", mirror=server.url(""), parts=["noise", "weather"], verify=False)
    assert open_data(root, domains=["*/5"]).domains == ("shot_noise/5", "snow/5", "fog/5")
    assert open_data(root).dataset("snow/1").labels.tolist() == [3, 3]
    assert len(server.seen) == 2


def test_imagenet_sketch_is_a_zip(server, tmp_path):
    made = class_folders(tmp_path / "made", WNIDS[:2], name="sketch_{i}.JPEG")
    files = [(f"sketch/{p.relative_to(made).as_posix()}", p.read_bytes()) for p in made.rglob("*.JPEG")]
    server.files["/ImageNet-Sketch.zip"] = zip_of(files)
    root = download("imagenet-sketch", tmp_path / "data", mirror=server.url(""))
    assert open_data(root).layout == "imagenet-sketch"
    assert len(open_data(root).dataset()) == 4


def test_a_mirror_with_other_bytes_is_refused(server, tmp_path):
    batch = ("cifar-10-batches-bin/test_batch.bin", bytes(3073))
    server.files["/cifar-10-binary.tar.gz"] = tar([batch], "w:gz")
    with pytest.raises(DataError, match="wrong md5 checksum: expected c32a1d4ab5d03f1284b67883e8d87530"):
        download("cifar-10", tmp_path, mirror=server.url(""))
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz.bad"]
    download("cifar-10", tmp_path, mirror=server.url(""), verify=False)
    assert open_data(tmp_path / "cifar-10").dataset("test").labels.tolist() == [0]


@pytest.mark.usefixtures("unpublished")
def test_an_archive_put_there_by_hand_is_used_and_kept(tmp_path):
    data = tar([("imagenet-r/n01440764/art_0.jpg", b"...")])
    (tmp_path / "imagenet-r.tar").write_bytes(data)
    root = download("imagenet-r", tmp_path)
    assert (root / "n01440764" / "art_0.jpg").read_bytes() == b"..."
    assert (tmp_path / "imagenet-r.tar").read_bytes() == data
    (tmp_path / "CIFAR-10-C.tar").write_bytes(data)
    with pytest.raises(DataError, match=r"CIFAR-10-C\.tar.*wrong md5.*remove it"):
        download("cifar10-c", tmp_path)


def test_archives_are_kept_on_request(server, tmp_path):
    server.files["/imagenet-r.tar"] = tar([("imagenet-r/n01440764/art_0.jpg", b"...")])
    download("imagenet-r", tmp_path, mirror=server.url(""), keep=True)
    assert (tmp_path / "imagenet-r.tar").read_bytes() == server.files["/imagenet-r.tar"]


def test_an_unreadable_archive_is_an_error_and_nothing_appears(server, tmp_path):
    server.files["/imagenet-r.tar"] = b"not an archive" * 1000
    with pytest.raises(DataError, match="cannot be read"):
        download("imagenet-r", tmp_path, mirror=server.url(""))
    assert not (tmp_path / "imagenet-r").exists()


def test_a_bad_archive_does_not_stand_in_the_way_of_the_next_attempt(server, tmp_path):
    server.files["/imagenet-r.tar"] = b"not an archive" * 1000
    with pytest.raises(DataError, match=r"cannot be read.*imagenet-r\.tar\.bad' and will not be used"):
        download("imagenet-r", tmp_path, mirror=server.url(""))
    assert [path.name for path in tmp_path.iterdir()] == ["imagenet-r.tar.bad"]
    server.files["/imagenet-r.tar"] = tar([("imagenet-r/n01440764/art_0.jpg", b"...")])
    root = download("imagenet-r", tmp_path, mirror=server.url(""))
    assert (root / "n01440764" / "art_0.jpg").read_bytes() == b"..."


def test_a_good_archive_is_kept_when_something_else_stands_in_the_way(server, tmp_path):
    server.files["/imagenet-r.tar"] = tar([("imagenet-r/n01440764/art_0.jpg", b"...")])
    (tmp_path / "imagenet-r" / "n01440764").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(DataError, match="holds 'n01440764' already"):
            download("imagenet-r", tmp_path, mirror=server.url(""))
    assert len(server.seen) == 1
    assert not list(tmp_path.glob("*.bad"))


@pytest.mark.usefixtures("unpublished")
def test_a_bad_archive_put_there_by_hand_is_left_where_it_is(tmp_path):
    (tmp_path / "imagenet-r.tar").write_bytes(b"not an archive" * 1000)
    with pytest.raises(DataError, match=r"cannot be read.*remove it to have it downloaded"):
        download("imagenet-r", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["imagenet-r.tar"]


def test_an_archive_left_by_an_earlier_attempt_is_verified(server, tmp_path, monkeypatch):
    data = tar([("cifar-10-batches-bin/test_batch.bin", bytes(3073))], "w:gz")
    published = DATASETS["cifar-10"]
    archive = dataclasses.replace(published.archives["all"], checksum=f"sha256:{hashlib.sha256(data).hexdigest()}")
    monkeypatch.setitem(DATASETS, "cifar-10", dataclasses.replace(published, archives={"all": archive}))
    server.files["/cifar-10-binary.tar.gz"] = data
    (tmp_path / ".cifar-10-binary.tar.gz").write_bytes(tar([("other/test_batch.bin", b"evil")], "w:gz"))
    root = download("cifar-10", tmp_path, mirror=server.url(""))
    assert (root / "test_batch.bin").read_bytes() == bytes(3073)
    assert len(server.seen) == 1
    shutil.rmtree(root)
    (tmp_path / ".cifar-10-binary.tar.gz").write_bytes(data)
    download("cifar-10", tmp_path, mirror=server.url(""))
    assert len(server.seen) == 1


def test_no_room_is_found_out_before_anything_is_written(server, tmp_path):
    server.files["/imagenet-r.tar"] = b"x"
    server.claim = 10**17
    with pytest.raises(DataError, match=r"not enough room .* 210,000,000\.0 GB needed"):
        download("imagenet-r", tmp_path, mirror=server.url(""))
    assert list(tmp_path.iterdir()) == []


def test_wrong_names_are_explained(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'imagenet-r'"):
        download("imagenet-q", tmp_path)
    with pytest.raises(UnknownNameError, match="unknown part of imagenet-c 'blurs': did you mean 'blur'"):
        download("imagenet-c", tmp_path, parts=["blurs"])
    with pytest.raises(OptionError, match="comes in one piece"):
        download("cifar10-c", tmp_path, parts=["fog"])
    with pytest.raises(OptionError, match="http or https"):
        download("cifar10-c", tmp_path, mirror="ftp://example.org")
    assert find("CIFAR-10-C") is DATASETS["cifar10-c"]


def test_the_catalog_is_well_formed():
    lengths = {kind: len(hashlib.new(kind).hexdigest()) for kind in ("md5", "sha256")}
    for published in DATASETS.values():
        for archive in published.archives.values():
            assert archive.url.startswith("https://")
            if archive.checksum is not None:
                kind, _, value = archive.checksum.partition(":")
                assert re.fullmatch(rf"[0-9a-f]{{{lengths[kind]}}}", value)


def test_a_small_archive_that_becomes_150_megabytes_is_refused_before_anything_is_written(tmp_path):
    with zipfile.ZipFile(tmp_path / "zeros.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(150_000_000))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArchiveError, match="would become more than 104,857,600"):
        unpack(tmp_path / "zeros.zip", tmp_path / "folder")
    assert list((tmp_path / "folder").iterdir()) == []


def headed(size, content):
    """A tar whose first header claims that a long name of `size` bytes follows."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    return header.tobuf(tarfile.GNU_FORMAT) + content


@pytest.mark.parametrize("size", [20 * 2**20, 2**40, 2**62])
@pytest.mark.parametrize("packed", [False, True])
def test_a_header_that_would_fill_the_memory_is_refused(tmp_path, size, packed):
    content = headed(size, bytes(2**20))
    (tmp_path / "a.tar").write_bytes(gzip.compress(content) if packed else content)
    (tmp_path / "out").mkdir()
    with pytest.raises(ArchiveError, match=rf"header of {size:,} bytes"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


def test_padding_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("neotta.data.downloads.unpack._FREE", 2**20)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bytes(64 * 2**20)))
    (tmp_path / "out").mkdir()
    with pytest.raises(ArchiveError, match="longer than"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")
