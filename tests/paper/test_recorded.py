"""Reports from records alone."""

from __future__ import annotations

import pytest
from support.small_studies import small_study

from neotta.errors import DataError
from neotta.evaluate.records import Records, write_records
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.page import facts
from neotta.paper.study import Subject

ITEMS = chosen(["corruptions", "samples", "alpha", "cross-domain", "continual", "classes", "alignment"])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    evidence = Evidence(small_study(), folder / "records.jsonl", cache=folder / "cache")
    evidence.gather(ITEMS)
    found = {item.name: item.find(evidence) for item in ITEMS}
    return folder / "records.jsonl", found


def gone(path, folder):
    """The same records of a model and images that are not here."""
    moved = [each.model_copy(update={"model": "timm:gone", "data": "gone/images"}) for each in Records(path).read()]
    write_records(moved, folder / "moved.parquet")
    return folder / "moved.parquet"


def test_every_table_and_figure_is_made_without_the_model_and_the_images(measured, tmp_path):
    path, expected = measured
    subject = Subject(model="timm:gone", data="gone/images", corruptions=["fog", "contrast"], name="digits")
    evidence = Evidence(small_study(subjects=[subject]), gone(path, tmp_path), only_recorded=True)
    evidence.gather(ITEMS)
    assert evidence.problems == {}
    for item in ITEMS:
        found = item.find(evidence)
        assert found.answer == expected[item.name].answer
        assert [part.data for part in found.parts] == [part.data for part in expected[item.name].parts]
    assert "10 classes" in str(facts(evidence, 1.0))


def test_records_of_orders_without_facts_of_the_data_are_enough(measured, tmp_path):
    path, _ = measured
    blank = {"sizes": None, "fewest": None, "classes": None}
    write_records([each.model_copy(update=blank) for each in Records(path).read()], tmp_path / "few.parquet")
    (setting,) = Evidence(small_study(), tmp_path / "few.parquet", only_recorded=True).settings
    assert setting.domains == ("fog/5", "contrast/5")
    assert setting.samples == 48


def test_what_is_not_recorded_is_told(measured, tmp_path):
    path, _ = measured
    study = small_study(seeds=[2020, 7])
    evidence = Evidence(study, path, only_recorded=True)
    evidence.gather(chosen(["alpha"]))
    assert any("of its runs are not recorded" in problem for problem in evidence.problems.values())
    with pytest.raises(DataError, match="no record of 'timm:other'"):
        Evidence(small_study(subjects=[Subject(model="timm:other")]), path, only_recorded=True)
