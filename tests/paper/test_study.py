from __future__ import annotations

import pytest

from neotta.paper.evidence import Evidence
from neotta.paper.study import Setting, Study, Subject


def setting(**study):
    return Setting(Study(**study), Subject(corruptions=["fog"]), ("none", "neo", "tent"), images=600, clean=True)


def planned(plans):
    return [([each.method for each in plan.methods], plan.samples, plan.seeds) for plan in plans]


def test_slow_methods_run_on_fewer_samples_with_the_others_beside_them():
    less = setting(samples=512, slow_samples=256, seeds=[1, 2], slow_seeds=[1])
    assert less.slow == {"tent"}
    assert planned(less.online()) == [(["none", "neo"], [512], [1, 2]), (["none", "neo", "tent"], [256], [1])]
    assert planned(less.online("none", "neo")) == [(["none", "neo"], [512], [1, 2])]
    same = setting(samples=512, slow_samples=512)
    assert planned(same.online()) == [(["none", "neo", "tent"], [512], [2020, 1234, 9999])]


def test_methods_beyond_the_study_are_slow_by_their_kind():
    less = setting(samples=512, slow_samples=256, seeds=[1])
    assert planned(less.online("neo", "neo-bn"))[-1] == (["neo", "neo-bn"], [256], [1])
    assert planned(less.online("neo", "neo+lame")) == [(["neo", "neo+lame"], [512], [1])]


def test_names_leave_options_out():
    study = Study()
    several = Setting(study, Subject(), ("none", "neo-continual:alpha=0.1|0.5", "sar@original", "sar"))
    assert several.names == ["none", "neo-continual", "sar"]


def test_any_method_can_be_asked_about(evidence):
    digits = evidence.settings[0]
    assert digits.can("neo+lame")
    assert digits.can("neo-continual:alpha=0.1|0.5")
    assert "BatchNorm" in digits.why_not("neo-bn")
    assert "cannot be stacked" in digits.why_not("lame+neo")
    assert "alpha" in digits.why_not("neo-continual:alpha=7")


def test_what_does_not_work_is_left_out_with_the_reason(tmp_path):
    study = Study(subjects=[Subject(corruptions=["fog"])], methods=["none", "neo", "neo-bn"], samples=8)
    (found,) = Evidence(study, tmp_path / "records.jsonl").settings
    assert found.methods == ("none", "neo")
    assert list(found.left_out) == ["neo-bn"]
    assert "BatchNorm" in found.left_out["neo-bn"]


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ({}, "digits"),
        ({"data": "/somewhere/images"}, "digits on images"),
        ({"model": "timm:resnet50", "data": "imagenet-c=/somewhere"}, "timm:resnet50 on imagenet-c"),
        ({"data": "/somewhere/images", "name": "mine"}, "mine"),
    ],
)
def test_titles_leave_out_where_data_lies(given, title):
    assert Subject(**given).title == title
