"""The base of items: what happens around the code of one."""

import pytest
from support.small_studies import small_study

from neotta.errors import DataError
from neotta.evaluate.metrics import Interval
from neotta.paper.evidence import Evidence
from neotta.paper.item import Skip, chosen, item, items

DECLARED = {"title": "Made up"}


def test_an_item_is_asked_of_every_subject(evidence):
    made = item(**DECLARED, claim="It is.", place="Table 0")(lambda report: report.say("it is", "yes"))
    finding = made.find(evidence)
    assert finding.answer == "On digits, it is. On mild, it is."
    assert finding.holds == "yes"
    assert item(**DECLARED, once=True)(made.show).find(evidence).answer == "On digits, it is."


def test_the_seeds_behind_an_item_are_those_of_its_runs(evidence):
    def show(report):
        report.say("it is", "partly")

    declared = {**DECLARED, "claim": "It is."}
    assert item(**declared)(show).find(evidence).holds == "partly"
    one = item(**declared, runs=lambda setting: [setting.plan("none", seeds=[1])])(show)
    assert one.find(evidence).holds == "unclear"


def test_a_subject_that_cannot_answer_is_passed_over_and_its_reason_noted(evidence):
    def show(report):
        if report.title == "mild":
            raise DataError("has no labels")
        raise Skip

    finding = item(**DECLARED, claim="It is.", remarks=("Always true.",))(show).find(evidence)
    assert (finding.answer, finding.holds) == ("Nothing could be measured.", "unclear")
    assert finding.notes == ["mild: has no labels"], "remarks are of no use without an answer"


def test_a_subject_with_too_few_domains_is_neither_run_nor_asked(evidence):
    plans = {"runs": lambda setting: [setting.plan("none")], "domains": 2}
    made = item(**DECLARED, **plans)(lambda report: report.say("it is"))
    assert [len(made.plans(setting)) for setting in evidence.settings] == [1, 0]
    finding = made.find(evidence)
    assert finding.answer == "On digits, it is."
    assert finding.holds is None, "there is no claim"
    assert finding.notes == ["mild: has one domain, and this needs several."]


def test_what_subjects_return_is_concluded_and_notes_are_given_once(evidence):
    kept = {}

    def show(report):
        report.note("the same")
        report.say("it is")
        return len(report.title)

    made = item(**DECLARED, conclude=lambda finding, shown: kept.update(shown), remarks=("at the end",))(show)
    assert made.find(evidence).notes == ["the same", "at the end"]
    assert kept == {"digits": 6, "mild": 4}


def test_parts_are_named_by_the_subject(evidence):
    def show(report):
        gains = {"neo": Interval(2.0, 1.0, 3), "lame": Interval(-1.0, 0.5, 3)}
        report.ranking("Made up", "what is gained", gains, "points", "How to read it.", sign="+")
        report.beside("gain", {"neo": 1.5}, gains, sign="+")

    figure, table = item(**DECLARED)(show).find(evidence).parts[:2]
    assert (figure.name, figure.title) == ("made-up-digits", "digits: what is gained")
    assert [row["mean"] for row in figure.data] == [2.0, -1.0]
    assert table.title == "digits: gain, published and measured"
    assert [entry.text for entry in table.grid.rows[0][1]] == ["+1.5", "+2.0 [+1.0, +3.0]", "+0.5"]
    assert [entry.text for entry in table.grid.rows[1][1]] == ["–", "-1.0 [-1.5, -0.5]", "–"]


def test_a_method_of_ones_own_appears_under_its_title(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from neotta.adapters.neo import NEO\n\n\nclass Mine(NEO):\n    title = 'My method'\n"
    )
    method = f"py:{tmp_path / 'mine.py'}:Mine"
    found = Evidence(small_study(methods=["none", method, "neo"], seeds=[1]), tmp_path / "records.jsonl")
    corruptions = items()["corruptions"]
    found.gather([corruptions])
    finding = corruptions.find(found)
    assert finding.parts[0].grid.columns == ("none", "neo", "My method")
    assert "py:" not in finding.answer + "".join(finding.notes)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    path = tmp_path_factory.mktemp("nothing") / "records.jsonl"
    Evidence(small_study(methods=["none"], seeds=[99], samples=16), path).gather(chosen(["corruptions"]))
    return Evidence(small_study(), path, only_recorded=True)


@pytest.mark.parametrize("name", list(items()))
def test_every_item_can_do_without_any_record(nothing, name):
    finding = items()[name].find(nothing)
    assert finding.answer
    assert name == "methods" or not finding.parts
