"""Hugging Face datasets on disk: Parquet files of a repository, Arrow files as `save_to_disk` writes them."""

import io
import json
import pickle

import numpy as np
import pytest
from PIL import Image
from support.data_makers import picture

from neotta.data.opening import open_data
from neotta.errors import DataError, MissingExtraError


def png(seed):
    buffer = io.BytesIO()
    Image.fromarray(picture(seed)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow", reason="needs the extra 'parquet'")


def table(arrow, seeds, labels, *, names=None, columns=("image", "label")):
    images = [{"bytes": png(seed), "path": f"{seed}.png"} for seed in seeds]
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    made = arrow.table({columns[0]: arrow.array(images, kind), columns[1]: labels})
    if names is None:
        return made
    features = {columns[0]: {"_type": "Image"}, columns[1]: {"names": names, "_type": "ClassLabel"}}
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def write_parquet(arrow, path, made, rows=2):
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(made, path, row_group_size=rows)


def test_shards_of_a_split_are_one_domain(arrow, tmp_path):
    for shard, (seeds, labels) in enumerate([(range(5), [0, 1, 1, 0, 1]), (range(5, 8), [1, 0, 0])]):
        made = table(arrow, seeds, labels, names=["cat", "dog"])
        write_parquet(arrow, tmp_path / "data" / f"train-0000{shard}-of-00002.parquet", made)
    write_parquet(arrow, tmp_path / "data" / "test-00000-of-00001.parquet", table(arrow, [8], [-1]))
    source = open_data(tmp_path)
    assert (source.layout, source.domains) == ("parquet", ("test", "train"))
    train = open_data(tmp_path, domains=["train"]).dataset()
    assert train.domain == "parquet/train"
    assert train.labels.tolist() == [0, 1, 1, 0, 1, 1, 0, 0]
    for index in (7, 0, 4, 5, -1):
        np.testing.assert_array_equal(train.read(index), picture(range(8)[index]))
    assert train.header(0) == ("PNG", "RGB", 24, 20)
    assert source.dataset("test").labels is None


def test_one_file_with_class_names(arrow, tmp_path):
    path = tmp_path / "pets.parquet"
    write_parquet(arrow, path, table(arrow, [0, 1], [1, 0], names=["cat", "dog"], columns=("picture", "kind")))
    source = open_data(path)
    assert (source.domains, source.classes) == (("pets",), ("cat", "dog"))
    dataset = pickle.loads(pickle.dumps(source.dataset()))
    assert dataset.labels.tolist() == [1, 0]
    np.testing.assert_array_equal(dataset.read(1), picture(1))


def test_labels_that_are_words_are_numbered_over_all_splits(arrow, tmp_path):
    write_parquet(arrow, tmp_path / "train.parquet", table(arrow, [0, 1], ["dog", "eel"], columns=("img", "wnid")))
    write_parquet(arrow, tmp_path / "test.parquet", table(arrow, [2, 3], ["cat", "eel"], columns=("img", "wnid")))
    source = open_data(tmp_path)
    assert source.classes == ("cat", "dog", "eel")
    assert source.dataset("train").labels.tolist() == [1, 2]
    assert source.dataset("test").labels.tolist() == [0, 2]


@pytest.mark.parametrize("writer", ["new_stream", "new_file"])
def test_arrow_files(arrow, tmp_path, writer):
    made = table(arrow, range(5), [0, 1, 0, 1, 0], names=["cat", "dog"])
    (tmp_path / "train").mkdir()
    with getattr(arrow.ipc, writer)(str(tmp_path / "train" / "data-00000-of-00001.arrow"), made.schema) as out:
        out.write_table(made, max_chunksize=2)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    source = open_data(tmp_path)
    assert (source.domains, source.classes) == (("train",), ("cat", "dog"))
    np.testing.assert_array_equal(source.dataset().read(3), picture(3))


def test_bare_bytes_are_images_too(arrow, tmp_path):
    write_parquet(arrow, tmp_path / "x.parquet", arrow.table({"image": [png(0)]}))
    dataset = open_data(tmp_path / "x.parquet").dataset()
    assert (dataset.labels, dataset.classes) == (None, None)
    np.testing.assert_array_equal(dataset.read(0), picture(0))


def test_a_file_written_anew_is_read_anew(arrow, tmp_path):
    path = tmp_path / "x.parquet"
    for seed in (0, 1):
        write_parquet(arrow, path, table(arrow, [seed], [0]))
        np.testing.assert_array_equal(open_data(path).dataset().read(0), picture(seed))


def test_rows_without_images_are_bad_samples(arrow, tmp_path):
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    rows = arrow.array([{"bytes": None, "path": "elsewhere.png"}, {"bytes": b"broken", "path": None}, None], kind)
    write_parquet(arrow, tmp_path / "x.parquet", arrow.table({"image": rows}))
    dataset = open_data(tmp_path / "x.parquet").dataset()
    for index, message in enumerate(["saved without its images", "not an image of a known format", "no image bytes"]):
        with pytest.raises(DataError, match=message):
            dataset.read(index)


def test_files_that_cannot_be_used_are_refused(arrow, tmp_path):
    path = tmp_path / "x.parquet"
    write_parquet(arrow, path, arrow.table({"text": ["a"], "label": [0]}))
    with pytest.raises(DataError, match="no column of image files; its columns: text, label"):
        open_data(path)
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="cannot be read"):
        open_data(path)
    write_parquet(arrow, path, table(arrow, [0], [2], names=["cat", "dog"]))
    with pytest.raises(DataError, match=r"label 2 .* beyond the 2 classes"):
        open_data(path).dataset()
    (tmp_path / "y.arrow").write_bytes(b"ARROW1 and nothing more")
    with pytest.raises(DataError, match="cannot be read"):
        open_data(tmp_path / "y.arrow")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtraError, match=r"pip install 'neotta\[lab\]'"):
        open_data(tmp_path)
