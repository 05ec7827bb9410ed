from __future__ import annotations

import pytest
from support.small_studies import costed, made_up_cost, small_study

from neotta.evaluate.records import Records, content_key
from neotta.paper.evidence import Evidence, cost_of
from neotta.paper.item import chosen
from neotta.paper.items import resources
from neotta.paper.study import METHODS
from neotta.report.figures import Figure
from neotta.report.grids import Table

(ITEM,) = chosen(["resources"])
PI = {"processor": "Raspberry Pi 4 Model B", "gpu": None, "cores": 4}
HERE = {"none": (1.0, 300), "t3a": (1.3, 303), "lame": (2.0, 400), "neo": (1.01, 301)}
ALL = HERE | dict.fromkeys(("sar", "tent", "cotta", "foa", "surgeon"), (1.5, 350))


def figures(finding):
    return [part for part in finding.parts if isinstance(part, Figure)]


def found(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def write(path, costs, machine, **conditions):
    """A file as `neotta bench -o` writes it on another device."""
    for method, (milliseconds, mebibytes) in costs.items():
        plain = costs.get("none", (1.0, None))[0]
        made_up = made_up_cost(method, milliseconds, mebibytes, plain, **conditions)
        cost = made_up.model_copy(update={"machine": machine})
        Records(path).append(cost.model_copy(update={"key": content_key(cost.entries())}))


def test_neo_alone_costs_nothing(tmp_path):
    finding = found(costed(tmp_path, ALL, methods=list(METHODS)))
    assert finding.holds == "yes"
    assert "1.01 times the time of the unadapted model and +1 MiB, the slowest other method (LAME) 2" in finding.answer
    assert finding.answer.endswith("without extra time and memory: NEO.")
    (figure,) = figures(finding)
    assert [(row["method"], row["milliseconds_per_image"], row["peak_mebibytes"]) for row in figure.data] == [
        (name, pytest.approx(ALL[name][0]), ALL[name][1]) for name in METHODS
    ], "what is drawn, in the order of the paper"
    assert figure.png().startswith(b"\x89PNG")


def test_the_change_against_the_mean_of_the_others_stands_beside_the_published(tmp_path):
    (table,) = [part for part in found(costed(tmp_path, HERE)).parts if isinstance(part, Table)]
    time, memory = table.data
    assert (time["published"], memory["published"]) == (-63.0, -9.0)
    assert time["measured_mean"] == pytest.approx(100 * (1.01 / ((1.3 + 2.0) / 2) - 1))
    assert memory["measured_mean"] == pytest.approx(100 * (301 / ((303 + 400) / 2) - 1))


@pytest.mark.parametrize(
    ("costs", "holds"),
    [
        ({**ALL, "t3a": (1.0, 300)}, "partly"),
        ({**ALL, "neo": (1.5, 300)}, "no"),
        ({**ALL, "neo": (1.0, 400)}, "no"),
        ({**HERE, "neo": (1.0, 400)}, "no"),  # whatever the others cost
        (HERE, "not judged"),
    ],
)
def test_it_is_honest(tmp_path, costs, holds):
    finding = found(costed(tmp_path, costs, methods=list(costs)))
    assert finding.holds == holds
    assert finding.missing == (["SAR", "TENT", "CoTTA", "FOA", "Surgeon"] if holds == "not judged" else [])


def test_a_busy_machine_tells_nothing(tmp_path):
    finding = found(costed(tmp_path, {**ALL, "none": (0.8, 300)}, methods=list(METHODS)))  # the model alone: 1 ms
    assert finding.holds == "unclear"
    assert finding.answer.endswith("differs by a factor of 1.25: the machine was busy.")


def test_times_are_those_beside_the_unadapted_model_in_the_same_process():
    costs = {name: made_up_cost(name, time, 300) for name, time in (("none", 1.0), ("tent", 3.0))}
    costs["neo"] = made_up_cost("neo", 1.5, 300, plain=1.5)  # the machine had become slower, NEO had not
    assert resources.milliseconds(costs) == pytest.approx({"none": 1.0, "tent": 3.0, "neo": 1.0})


def test_devices_are_merged_in_each_with_its_own_figure(tmp_path):
    write(tmp_path / "pi.jsonl", {"none": (900, None), "neo": (901, None)}, PI)
    write(tmp_path / "pi.jsonl", {"none": (100, 200), "neo": (101, 200)}, PI, device="cpu", dtype="bfloat16")
    jetson = {"processor": "ARMv8", "gpu": "Orin"}
    write(tmp_path / "jetson.jsonl", {"tent": (90, 900)}, jetson, device="cuda")
    files = [tmp_path / "pi.jsonl", tmp_path / "jetson.jsonl"]
    study = small_study(methods=["none"], merge=list(map(str, files)))
    finding = ITEM.find(Evidence(study, tmp_path / "records.jsonl"))
    shown = figures(finding)
    assert [figure.title for figure in shown] == [
        "Time and memory on Raspberry Pi 4 Model B",
        "Time and memory on Raspberry Pi 4 Model B",
        "Time and memory on Orin",
    ]
    assert len({figure.name for figure in shown}) == 3
    assert [[row["method"] for row in figure.data] for figure in shown] == [["none", "neo"], ["none", "neo"], ["tent"]]
    assert "bfloat16" in shown[1].data[0]["conditions"]
    assert finding.holds == "not judged"
    assert all("<svg" in figure.svg() for figure in shown)


def test_the_way_to_add_a_device_is_told(tmp_path):
    notes = " ".join(ITEM.find(costed(tmp_path, {})).notes)
    assert "neotta bench digits --methods none,t3a,lame,neo --batch-size 8 -o pi.jsonl" in notes
    assert 'merge = ["pi.jsonl"]' in notes


@pytest.mark.slow
def test_costs_are_measured_once_and_kept(tmp_path, small_model):
    subject = {"model": small_model, "corruptions": ["fog"]}
    study = small_study(subjects=[subject], methods=["neo"], batch_size=2)
    evidence = Evidence(study, tmp_path / "records.jsonl")
    evidence.gather([ITEM])
    (figure,) = figures(ITEM.find(evidence))
    (record,) = Records(tmp_path / "records.jsonl").read()
    (row,) = figure.data
    assert row["seconds_per_image"] == record.seconds_per_image > 0
    assert row["forward_passes"] == 1.0
    again = Evidence(study, tmp_path / "records.jsonl")
    again.gather([ITEM])
    assert len(Records(tmp_path / "records.jsonl").read()) == 1
    assert figures(ITEM.find(again))[0].data == figure.data


def test_recorded_costs_are_shown_on_another_machine(tmp_path):
    evidence = costed(tmp_path, {})
    evidence.gather(chosen(["batch-size"]))
    there = made_up_cost("neo", 2.0, 300).model_copy(update={"machine": PI})
    Records(tmp_path / "records.jsonl").append(cost_of(evidence.settings[0], there))
    recorded = Evidence(small_study(), tmp_path / "records.jsonl", only_recorded=True)
    (figure,) = figures(found(recorded))
    assert [(row["device"], row["method"]) for row in figure.data] == [(PI["processor"], "neo")]
    assert recorded.settings[0].left_out == dict.fromkeys(("none", "t3a", "lame"), "it is not recorded")


def test_a_model_that_cannot_be_measured_is_a_problem_not_an_end(tmp_path):
    evidence = costed(
        tmp_path, {}, subjects=[{"corruptions": ["fog"], "model_options": {"dtype": None}}], methods=["neo"]
    )
    evidence.gather([ITEM])
    assert "dtype is a condition of its own" in next(iter(evidence.problems.values()))
    finding = ITEM.find(evidence)
    assert (finding.answer, finding.holds, finding.parts) == ("Nothing could be measured.", "unclear", [])
