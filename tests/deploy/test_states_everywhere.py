"""Every way to write a state against every way to read it: the reader goes on as the writer would have."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.deploy import LogitRecenter, SharedStreams, SQLiteStore
from neotta.errors import NeottaError, StateError, StateFileError, StateMismatchError
from neotta.models.load import LoadedModel
from neotta.neo.codec import StateFile
from neotta.neo.statefile import packed, unpacked

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from neotta.cli.serve import open_engine
from neotta.deploy import OnnxClassifier, export
from neotta.deploy.serve.engine import TorchEngine

PREPROCESS = neotta.Preprocess(size=(8, 8))
CLASSES = 5


def network(seed=0, classes=CLASSES):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(OrderedDict(body=body, fc=nn.Linear(6, classes))).eval()


def images(count=24, seed=0):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) + 0.7


FIRST, NEXT = images(40), images(6, seed=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """ONNX files of the same network: plain, and adaptive for each rule."""
    folder = tmp_path_factory.mktemp("onnx")
    export(network(), folder / "plain.onnx", preprocess=PREPROCESS, verify=False)
    for method in ("neo", "neo-stream"):
        model = neotta.adapt(network(), method)
        export(model, folder / f"{method}.onnx", form="adaptive", preprocess=PREPROCESS, verify=False)
    return folder


@torch.no_grad()
def plain(batch):
    return network()(batch).numpy()


def logits(method, **how):
    fc = network().fc
    return LogitRecenter(fc.bias, method, **{"weight": fc.weight, **how})


# ---- the writers: what each saves after `FIRST`; those that re-center logits alone keep a mean of logits


def by_head(method, path, files):
    model = neotta.adapt(network(), method)
    with torch.no_grad():
        model(FIRST)
    neotta.save(model, path)


def by_stream(method, path, files):
    model = neotta.adapt(network(), method, streams=True)
    with torch.no_grad(), neotta.streams("gate"):
        model(FIRST)
    neotta.save(model, path, stream="gate")


def by_output(method, path, files):
    model = neotta.adapt(network(), method, at="logits")
    with torch.no_grad():
        model(FIRST)
    neotta.save(model, path)


def by_adapter(method, path, files):
    adapter = neotta.create(method, network())
    adapter(FIRST)
    adapter.save(path)


def by_logits(method, path, files):
    recenter = logits(method)
    recenter.recenter(plain(FIRST))
    recenter.save(path)


def by_session(method, path, files):
    classifier = OnnxClassifier(files / f"{method}.onnx")
    classifier.predict(FIRST.numpy())
    classifier.save(path)


def by_torch_server(method, path, files):
    engine = TorchEngine(LoadedModel(network(), PREPROCESS), method)
    engine.predict(FIRST.numpy(), ["gate"] * len(FIRST))
    path.write_bytes(engine.snapshot("gate").to_bytes())


def by_onnx_server(method, path, files):
    engine = open_engine(str(files / "plain.onnx"), rule=method)
    engine.predict(FIRST.numpy(), ["gate"] * len(FIRST))
    path.write_bytes(engine.snapshot("gate").to_bytes())


def by_shared(method, path, files):
    """And saved where the store was read."""
    models = [neotta.adapt(network(), method, streams=True) for _ in range(2)]
    one, other = (SharedStreams(model, SQLiteStore(path.parent / "store")) for model in models)
    one(FIRST, "gate")
    other(NEXT, "gate", adapt=False)
    neotta.save(other.model, path, stream="gate")


def in_folder(method, path):
    return neotta.adapt(network(), method, streams=True, folder=path.parent / "streams")


def closed(model):
    neotta.head(model).streams.flush()
    neotta.head(model).streams.spill.close()


def by_folder(method, path, files):
    """And saved by the next model that opens it."""
    model = in_folder(method, path)
    with torch.no_grad(), neotta.streams("gate"):
        model(FIRST)
    closed(model)
    model = in_folder(method, path)
    neotta.save(model, path, stream="gate")
    closed(model)


def by_merge(method, path, files):
    """Of a state and one that saw nothing."""
    by_head(method, path, files)
    neotta.merge([path, neotta.adapt(network(), method)]).save(path)


# ---- the readers: the count of samples, and the answers to `NEXT`, without learning


def to_head(method, path, files):
    model = neotta.adapt(network(), method)
    return of_model(model, path)


def to_plain(method, path, files):
    return of_model(network(), path)


def to_output(method, path, files):
    return of_model(neotta.adapt(network(), method, at="logits"), path)


def of_model(model, path):
    neotta.load(model, path)
    with torch.no_grad(), neotta.paused(model):
        return neotta.head(model).count, model(NEXT).numpy()


def to_stream(method, path, files):
    model = neotta.adapt(network(), method, streams=True)
    neotta.load(model, path, stream="yard")
    with torch.no_grad(), neotta.paused(model), neotta.streams("yard"):
        return neotta.head(model).count, model(NEXT).numpy()


def to_folder(method, path, files):
    """And read by the next model that opens it."""
    model = in_folder(method, path)
    neotta.load(model, path, stream="yard")
    closed(model)
    model = in_folder(method, path)
    with torch.no_grad(), neotta.paused(model), neotta.streams("yard"):
        count, answers = neotta.head(model).streams.counts()["yard"], model(NEXT).numpy()
    closed(model)
    return count, answers


def to_adapter(method, path, files):
    adapter = neotta.create(method, network())
    adapter.load(path)
    return adapter.neo.count, adapter(NEXT, adapt=False).numpy()


def to_logits(method, path, files):
    recenter = logits(method)
    recenter.load(path)
    return recenter.count, recenter.recenter(plain(NEXT), adapt=False)


def to_session(method, path, files):
    classifier = OnnxClassifier(files / f"{method}.onnx")
    classifier.load(path)
    return classifier.count, classifier.predict(NEXT.numpy(), adapt=False)


def to_torch_server(method, path, files):
    engine = TorchEngine(LoadedModel(network(), PREPROCESS), method)
    return of_engine(engine, path)


def to_onnx_server(method, path, files):
    return of_engine(open_engine(str(files / "plain.onnx"), state=path), None)


def to_adaptive_server(method, path, files):
    return of_engine(open_engine(str(files / f"{method}.onnx"), state=path), None)


def of_engine(engine, path):
    if path is not None:
        engine.begin_with(StateFile.load(path), "it")
    answer = engine.predict(NEXT.numpy(), ["new"] * len(NEXT), adapt=False).adapted
    (table,) = engine.streams.values()
    return int(table.table[0, 0]), answer


def to_shared(method, path, files):
    model = neotta.adapt(network(), method, streams=True)
    shared = SharedStreams(model, SQLiteStore(path.parent / "other"))
    neotta.load(model, path, stream="yard")
    return neotta.head(model).count, shared(NEXT, "yard", adapt=False).numpy()


def to_merge(method, path, files):
    """Into the state of a model that saw nothing."""
    model = network()
    neotta.load(model, neotta.merge([neotta.adapt(network(), method), path]))
    with torch.no_grad(), neotta.paused(model):
        return neotta.head(model).count, model(NEXT).numpy()


WRITERS = [by_head, by_stream, by_output, by_adapter, by_logits, by_session, by_torch_server, by_onnx_server, by_shared,
           by_folder, by_merge]  # fmt: skip
READERS = [to_head, to_plain, to_output, to_stream, to_folder, to_adapter, to_logits, to_session, to_torch_server,
           to_onnx_server, to_adaptive_server, to_shared, to_merge]  # fmt: skip
OF_LOGITS = {by_output, by_logits, by_onnx_server}
TO_EMBEDDINGS = {to_head, to_plain, to_stream, to_folder, to_adapter, to_session, to_torch_server, to_shared, to_merge}


@pytest.fixture(scope="module")
def expected():
    """The answers of the model after `FIRST`, paused; and those of a merge, which keeps no window and no labels."""
    answers = {}
    for method in ("neo", "neo-stream"):
        model = neotta.adapt(network(), method)
        with torch.no_grad():
            model(FIRST)
            with neotta.paused(model):
                answers[method, False] = model(NEXT).numpy()
        answers[method, True] = of_model(network(), neotta.merge([model]))[1]
    return answers


@pytest.mark.parametrize("method", ["neo", "neo-stream"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_whatever_writes_a_state_everything_reads_it(writer, reader, method, files, expected, tmp_path):
    path = tmp_path / "state"
    writer(method, path, files)
    adapts_there = writer is by_output and reader is to_plain
    if method == "neo" and writer in OF_LOGITS and reader in TO_EMBEDDINGS and not adapts_there:
        with pytest.raises(StateMismatchError, match="of logits"):
            reader(method, path, files)
        return
    count, answers = reader(method, path, files)
    assert count == len(FIRST)
    merged = by_merge is writer or to_merge is reader
    np.testing.assert_allclose(answers, expected[method, merged], atol=2e-4)


# ---- what does not fit: one sentence, and the reader is as it was


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """States that do not fit NEO-Stream on `network()`, with a word of what is said of each."""
    folder = tmp_path_factory.mktemp("bad")

    def save(name, model):
        with torch.no_grad():
            model(FIRST)
        neotta.save(model, folder / name)
        return folder / name

    good = save("good", neotta.adapt(network())).read_bytes()
    arrays, about = unpacked(good, "good")
    cases = {
        "another model": (save("model", neotta.adapt(network(seed=1))), "other head weights"),
        "another rule": (save("rule", neotta.adapt(network(), "neo")), "is of neo "),
        "other options": (save("options", neotta.adapt(network(), prior=False)), "prior=False"),
        "other classes": (save("classes", neotta.adapt(network(classes=7))), "vectors of 7 logits"),
        "a reference": (
            save("reference", neotta.adapt(network(), reference=neotta.reference(network(), images(80)))),
            "another reference",
        ),
    }
    contents = {
        "a newer version": (packed(arrays, {**about, "version": 2}), "version 2"),
        "an older version": (packed(arrays, {**about, "kind": "model"}), "neotta 0.3"),
        "cut": (good[:-9], "damaged"),
        "flipped": (good[:-9] + bytes([good[-9] ^ 4]) + good[-8:], "checksum"),
        "NaN": (packed({**arrays, "fc.shift": arrays["fc.shift"] * np.nan}, about), "NaN"),
        "too large": (packed({**arrays, "fc.shift": arrays["fc.shift"] * 0 + 1e9}, about), "beyond"),
        "an entry less": (
            packed({name: each for name, each in arrays.items() if "sticky" not in name}, about),
            "sticky",
        ),
    }
    for name, (content, word) in contents.items():
        (folder / name).write_bytes(content)
        cases[name] = folder / name, word
    return cases


def head(files):
    model = neotta.adapt(network())
    return neotta.head(model).streams, lambda path: neotta.load(model, path)


def stream(files):
    model = neotta.adapt(network(), streams=True)
    return neotta.head(model).streams, lambda path: neotta.load(model, path, stream="gate")


def adapter(files):
    made = neotta.create("neo-stream", network())
    return made.neo.streams, made.load


def behind_logits(files):
    recenter = logits("neo-stream")
    recenter.recenter(plain(FIRST))
    return recenter._neo.streams, recenter.load


def server(files):
    engine = TorchEngine(LoadedModel(network(), PREPROCESS))
    return engine.streams["fc"], lambda path: engine.begin_with(StateFile.load(path), repr(str(path)))


def onnx_server(files):
    engine = open_engine(str(files / "plain.onnx"))
    return engine.streams["head"], lambda path: engine.begin_with(StateFile.load(path), repr(str(path)))


CASES = ["another model", "another rule", "other options", "other classes", "a reference", "a newer version",
         "an older version", "cut", "flipped", "NaN", "too large", "an entry less"]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reader", [head, stream, adapter, behind_logits, server, onnx_server])
def test_what_does_not_fit_is_said_in_a_sentence_and_nothing_changes(reader, case, bad, files):
    streams, load = reader(files)
    before = streams.table.clone()
    path, word = bad[case]
    with pytest.raises(StateError, match=word) as error:
        load(path)
    assert "\n" not in str(error.value)
    assert torch.equal(streams.table, before)


@pytest.mark.parametrize("case", [case for case in CASES if case != "too large"])  # which is none in a graph
def test_a_session_rejects_them_too(case, bad, files):
    classifier = OnnxClassifier(files / "neo-stream.onnx")
    classifier.predict(FIRST.numpy())
    before = classifier.state()
    path, word = bad[case]
    with pytest.raises(StateError, match=word):
        classifier.load(path)
    assert all(np.array_equal(before[name], array) for name, array in classifier.state().items())


@pytest.mark.parametrize("case", CASES)
def test_a_merge_rejects_them_too(case, bad):
    path, _ = bad[case]
    with pytest.raises(StateError):
        neotta.merge([neotta.adapt(network()), path])


def test_a_plain_model_stays_plain(bad):
    for path, _ in (bad[case] for case in CASES[5:]):
        model = network()
        with pytest.raises(StateError):
            neotta.load(model, path)
        assert type(model.fc) is nn.Linear


def test_many_streams_are_exchanged_too(files, tmp_path):
    model = neotta.adapt(network(), streams=True)
    with torch.no_grad(), neotta.streams(["a", 7] * 20):
        model(FIRST)
    neotta.save(model, tmp_path / "many")
    classifier, recenter, twin = OnnxClassifier(files / "neo-stream.onnx"), logits("neo-stream"), network()
    classifier.load(tmp_path / "many")
    recenter.load(tmp_path / "many")
    recenter.save(tmp_path / "many")
    neotta.load(twin, tmp_path / "many")
    expected = {"a": 20, 7: 20}
    assert classifier.streams() == neotta.head(twin).streams.counts() == expected
    assert recenter.streams() == ["a", 7]
    with pytest.raises(StateMismatchError, match="many streams"):
        neotta.create("neo-stream", network()).load(tmp_path / "many")
    with pytest.raises(StateMismatchError, match="many streams"):
        neotta.load(neotta.adapt(network()), tmp_path / "many")
    with pytest.raises(NeottaError, match="many streams"):
        open_engine(str(files / "plain.onnx"), state=tmp_path / "many")
    neotta.save(model, tmp_path / "one", stream="a")
    with pytest.raises(StateMismatchError, match="name one"):
        neotta.load(model, tmp_path / "one")


def test_without_its_weight_a_mean_of_embeddings_is_none_of_logits(tmp_path, files):
    by_head("neo", tmp_path / "state", files)
    with pytest.raises(StateMismatchError, match="weight of the head"):
        LogitRecenter(network().fc.bias, "neo").load(tmp_path / "state")
    with pytest.raises(StateFileError):
        LogitRecenter(network().fc.bias, "neo").load(tmp_path / "nowhere")
