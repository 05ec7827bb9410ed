"""CCC: tar files as published, in a folder and from a server on this machine."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image
from support.data_makers import picture
from support.opened import opened
from support.tar_shards import BOTH, STREAM, jpeg, packed, serving_a_stream, shard

from neotta.data import orders
from neotta.data.opening import layout_of, open_data
from neotta.errors import DataError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving_a_stream(monkeypatch, tmp_path) as running:
        yield running


@pytest.mark.filterwarnings("ignore:CCC is a stream")
def test_tar_files_are_read_in_their_order(tmp_path):
    stream = tmp_path / STREAM
    write(stream / "serial_00000.tar", shard([("0000000", 1, 5), ("0000001", 2, 999)]))
    write(stream / "serial_00001.tar", shard([("0000000", 3, 0)]))
    source = opened(tmp_path, "ccc", 3)
    assert source.domains == open_data(stream).domains == (STREAM,)
    dataset = source.dataset()
    assert dataset.labels.tolist() == [5, 999, 0]
    assert dataset.ids == ["serial_00000/0000000", "serial_00000/0000001", "serial_00001/0000000"]
    assert orders.stored(dataset).index.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(dataset.read(2), np.asarray(Image.open(io.BytesIO(jpeg(3)))))
    assert len({dataset.digest(index) for index in range(3)}) == len({dataset.stamp(index) for index in range(3)}) == 3
    (stream / "serial_00001.tar").write_bytes(b"no tar")
    with pytest.raises(DataError, match=r"serial_00001.tar.* is not a readable tar file"):
        source.dataset()


def test_a_bare_path_says_that_it_is_a_stream(tmp_path):
    write(tmp_path / "serial_00000.tar", shard([("0", 1, 5)]))
    with pytest.warns(UserWarning, match="is a stream.*--order stored"):
        open_data(tmp_path)


@pytest.mark.parametrize("kinds", [("jpg", "cls"), ("jpeg", "txt"), ("input.jpg", "cls")])
def test_other_endings_of_webdataset(tmp_path, kinds):
    write(tmp_path / "serial_00000.tar", shard([("a/0001", 1, 7), ("b/0001", 2, 8)], kinds))
    dataset = open_data(f"ccc={tmp_path}").dataset()
    assert dataset.ids == ["serial_00000/a/0001", "serial_00000/b/0001"], "two folders, two samples"
    assert dataset.labels.tolist() == [7, 8]


def test_a_tar_file_that_claims_more_than_the_memory_is_refused(tmp_path):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**62
    write(tmp_path / "serial_00000.tar", header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(DataError, match="not a readable tar file of CCC"):
        open_data(f"ccc={tmp_path}").dataset()


def test_what_else_lies_in_a_tar_file_is_never_looked_at(tmp_path):
    bomb = b"cos\nsystem\n(S'touch harm'\ntR."
    members = [("0.jpg", jpeg(1)), ("0.cls", b"3"), ("0.pyd", bomb), ("0.pth", bomb), ("0.txt", b"a caption")]
    write(tmp_path / "serial_00000.tar", packed(members))
    dataset = open_data(f"ccc={tmp_path}").dataset()
    assert (dataset.labels.tolist(), dataset.read(0).shape) == ([3], picture(1).shape)
    write(tmp_path / "serial_00000.tar", packed([("0.jpg", jpeg(1)), ("0.cls", bomb)]))
    with pytest.raises(DataError, match="not a readable tar file of CCC: invalid literal"):
        open_data(f"ccc={tmp_path}").dataset()
    write(tmp_path / "serial_00000.tar", packed([("0.jpg", jpeg(1)), ("1.cls", b"3")]))
    with pytest.raises(DataError, match="an image without a label, or the reverse: '0'"):
        open_data(f"ccc={tmp_path}").dataset()
    write(tmp_path / "serial_00000.tar", packed([("0.jpg", jpeg(1)), ("0.cls", b"1000")]))
    with pytest.raises(DataError, match="go from 1000 to 1000, not 0 to 999"):
        open_data(f"ccc={tmp_path}").dataset()


def test_a_stream_is_fetched_file_by_file_and_kept(server):
    source = open_data(f"ccc={server.url(BOTH)}")
    assert not server.seen, "opening describes it; nothing is fetched until images are needed"
    dataset = source.dataset()
    assert dataset.domain == f"ccc/{STREAM}"
    assert dataset.labels.tolist() == [5, 999, 0]
    np.testing.assert_array_equal(dataset.read(2), np.asarray(Image.open(io.BytesIO(jpeg(3)))))
    assert len(server.seen) == 2
    server.files.clear()
    again = open_data(f"ccc={server.url(BOTH)}").dataset()
    assert (again.ids, len(server.seen)) == (dataset.ids, 2), "from the cache"


def test_a_stream_that_breaks_off_is_fetched_again_the_next_time(server):
    server.cuts = [10**6, 500]
    with pytest.raises(DataError, match=r"serial_00001\.tar cannot be downloaded"):
        open_data(f"ccc={server.url(BOTH)}").dataset()
    assert len(open_data(f"ccc={server.url(BOTH)}").dataset()) == 3
    assert len(server.seen) == 3, "the first file was kept"


def test_an_address_of_the_folder_is_its_first_file(server):
    with pytest.warns(UserWarning, match="stream") as notes:
        source = open_data(server.url(f"/CCC/{STREAM}"))
    assert [str(note.message).split(":")[0] for note in notes] == [
        "CCC is a stream",
        "of this stream only its first file",
    ]
    assert {note.filename for note in notes} == {__file__}
    assert len(source.dataset()) == 2
    assert layout_of(server.url(f"/CCC/{STREAM}")) == "ccc"


def test_a_damaged_file_says_how_to_get_it_again(server, tmp_path):
    server.files[f"/CCC/{STREAM}/serial_00001.tar"] = b"no tar" * 200
    with pytest.raises(
        DataError, match=r"serial_00001\.tar' is not a readable .* remove the file to have it fetched again"
    ):
        open_data(f"ccc={server.url(BOTH)}").dataset()
    server.files[f"/CCC/{STREAM}/serial_00001.tar"] = shard([("0", 3, 0)])
    next(tmp_path.rglob("serial_00001.tar")).unlink()
    assert len(open_data(f"ccc={server.url(BOTH)}").dataset()) == 3


@pytest.mark.parametrize(
    "address",
    ["http://host/a.tar", f"http://host/{STREAM}/x.tar", f"http://host/{STREAM}/serial_0.tar?a=b", "https://host"],
)
def test_other_addresses_are_refused(address):
    with pytest.raises(DataError, match="is not the address of a stream of CCC"):
        open_data(address)
    with pytest.raises(DataError, match="imagenet-r cannot be read from an address, only ccc"):
        open_data(f"imagenet-r={address}")


def test_a_range_of_files(server):
    address = server.url(f"/CCC/{STREAM}/serial_00001.tar")
    assert open_data(f"ccc={address}").dataset().labels.tolist() == [0]
    with pytest.raises(DataError, match="runs backwards"):
        open_data(server.url(f"/CCC/{STREAM}/serial_{{2..1}}.tar"))
