"""Folders of WILDS, made up in the form in which they are published."""

from __future__ import annotations

import numpy as np
import pytest
from support.data_makers import picture, write_image
from support.opened import opened

from neotta.data.opening import open_data
from neotta.errors import DataError


def test_camelyon17_has_a_domain_for_each_hospital(tmp_path):
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for number, (patient, center, tumor) in enumerate((("004", 0, 1), ("017", 2, 0), ("017", 2, 1))):
        place = f"patient_{patient}_node_4"
        write_image(tmp_path / "patches" / place / f"patch_{place}_x_{number}_y_7.png", seed=number)
        lines.append(f"{number},{patient},4,{number},7,{tumor},0,{center},0")
    (tmp_path / "metadata.csv").write_text("\n".join(lines) + "\n")
    source = opened(tmp_path, "camelyon17", 3)
    assert source.domains == ("center-0", "center-2")
    assert source.classes == ("normal", "tumor")
    assert source.dataset("center-2").labels.tolist() == [0, 1]
    np.testing.assert_array_equal(source.dataset("center-2").read(1), picture(2))


def test_iwildcam_has_a_domain_for_each_split(tmp_path):
    for name in "abc":
        write_image(tmp_path / "train" / f"{name}.jpg")
    rows = ["a.jpg,1,test,7", "b.jpg,0,train,8", "c.jpg,0,test,9"]
    (tmp_path / "metadata.csv").write_text("\n".join(["filename,y,split,location_remapped", *rows]) + "\n")
    (tmp_path / "categories.csv").write_text("y,name\n0,empty\n1,lion\n")
    source = opened(tmp_path, "iwildcam", 3)
    assert source.domains == ("test", "train")
    assert source.classes == ("empty", "lion")
    assert source.dataset("test").ids == ["train/a.jpg", "train/c.jpg"]
    (tmp_path / "metadata.csv").write_text("filename,y,split,location_remapped\na.jpg,lion,test,7\n")
    with pytest.raises(DataError, match="line 2 of"):
        open_data(tmp_path)
    with pytest.raises(DataError, match=r"no metadata\.csv with the columns"):
        open_data(f"camelyon17={tmp_path}")


def fmow(root, rows):
    """A table of (split, category, timestamp), and the images it names."""
    lines = ["split,category,country_code,timestamp"]
    for number, (split, category, timestamp) in enumerate(rows):
        lines.append(f"{split},{category},DEU,{timestamp}")
        write_image(root / "images" / f"rgb_img_{number}.png", seed=number)
    (root / "rgb_metadata.csv").write_text("\n".join(lines) + "\n")


def test_fmow_is_split_by_year_as_wilds_does(tmp_path):
    rows = [
        ("train", "zoo", "2012-12-31T23:59:59Z"),
        ("seq", "zoo", "2017-01-01T00:00:00Z"),  # held back: left out, but it keeps its number
        ("test", "airport", "2016-01-01T00:00:00Z"),
        ("test", "zoo", "2009-05-01T00:00:00Z"),
        ("val", "zoo", "2013-01-01T00:00:00Z"),
        ("val", "dam", "2011-01-01T00:00:00Z"),
        ("train", "zoo", "2014-01-01T00:00:00Z"),  # of the years of the validation, but in no split of WILDS
        ("val", "zoo", "2016-06-01T00:00:00Z"),
        ("test", "zoo", "2017-06-01T00:00:00Z"),
    ]
    fmow(tmp_path, rows)
    source = opened(tmp_path, "fmow", 6)
    assert source.domains == ("test", "val", "id_test", "id_val", "train")
    assert source.classes == ("airport", "dam", "zoo")
    test = source.dataset("test")
    assert test.ids == ["images/rgb_img_2.png", "images/rgb_img_8.png"]
    assert test.labels.tolist() == [0, 2]
    np.testing.assert_array_equal(test.read(1), picture(8))
    found = {domain: source.dataset(domain).ids for domain in source.domains[1:]}
    numbers = {"val": 4, "id_test": 3, "id_val": 5, "train": 0}
    assert found == {domain: [f"images/rgb_img_{number}.png"] for domain, number in numbers.items()}


def test_fmow_with_a_line_that_is_none(tmp_path):
    fmow(tmp_path, [("train", "zoo", "2012-12-31T23:59:59Z"), ("train", "zoo", "yesterday")])
    with pytest.raises(DataError, match=r"line 3 of .*rgb_metadata\.csv.* cannot be read"):
        open_data(tmp_path)
    fmow(tmp_path, [("rest", "zoo", "2012-12-31T23:59:59Z")])
    with pytest.raises(DataError, match="'rest' is none of train, val, test, seq"):
        open_data(tmp_path)


def test_rxrx1_has_a_domain_for_each_experiment(tmp_path):
    lines = ["site_id,well_id,cell_type,dataset,experiment,plate,well,site,well_type,sirna,sirna_id"]
    samples = [
        ("test", "RPE-08", 2, "B03", 1, 5),
        ("test", "RPE-08", 2, "B03", 2, 5),
        ("val", "U2OS-04", 1, "C05", 2, 0),
    ]
    samples += [("train", "HEPG2-01", 4, "B02", site, 7) for site in (1, 2)]
    for number, (part, experiment, plate, well, site, label) in enumerate(samples):
        write_image(tmp_path / "images" / experiment / f"Plate{plate}" / f"{well}_s{site}.png", seed=number)
        lines.append(f"a,b,{experiment[:-3]},{part},{experiment},{plate},{well},{site},treatment,s21721,{label}")
    (tmp_path / "metadata.csv").write_text("\n".join(lines) + "\n")
    source = opened(tmp_path, "rxrx1", 5)
    assert source.domains == ("test/RPE-08", "val/U2OS-04", "id_test/HEPG2-01", "train/HEPG2-01")
    assert source.only(["test"]).domains == ("test/RPE-08",)
    assert len(source.classes) == 8
    second = source.dataset("id_test/HEPG2-01")
    assert (second.ids, second.labels.tolist()) == (["images/HEPG2-01/Plate4/B02_s2.png"], [7])
    np.testing.assert_array_equal(second.read(0), picture(4))


def test_povertymap_is_recognised_and_refused(tmp_path):
    (tmp_path / "images").mkdir()
    np.savez(tmp_path / "images" / "landsat_poverty_img_0.npz", x=np.zeros((8, 4, 4), np.float32))
    (tmp_path / "dhs_metadata.csv").write_text("country,wealthpooled\nangola,0.3\n")
    with pytest.raises(DataError, match=r"PovertyMap .* number, not a class.* eight satellite bands"):
        open_data(tmp_path)
