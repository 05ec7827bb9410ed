"""Export and the runner: every form and variant against torch."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from support.deploy_models import LABELS, PREPROCESS, hf_vit, network, started, timm_vit

import neotta
from neotta.data import digits
from neotta.deploy import LogitRecenter, OnnxClassifier, export
from neotta.deploy.onnx.card import CHECKSUM_KEY, NO_CHECKSUM, with_checksum
from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    MissingExtraError,
    ModelError,
    ModelLoadError,
    NotAdaptedError,
    OptionError,
    StateFileError,
    StateMismatchError,
    UnknownNameError,
    UnsupportedModelError,
)
from neotta.neo.files import state_of
from neotta.neo.find_head import logits_of


@pytest.fixture
def images():
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(3))


MODELS = {
    "timm vit": (timm_vit, "neo", {}),
    "distilled": (lambda: timm_vit("deit_tiny_distilled_patch16_224"), "neo", {}),
    "hf vit": (hf_vit, "neo", {"shrinkage": "james-stein"}),
    "network": (network, "neo", {}),
    "network, continual": (network, "neo-continual", {"alpha": 0.3, "debias": True}),
    "network, stream": (network, "neo-stream", {}),
    "distilled, stream": (lambda: timm_vit("deit_tiny_distilled_patch16_224"), "neo-stream", {"prior": False}),
    "network, mse by batches": (network, "neo-mse", {"weighting": "batch"}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The ONNX file of a model in a form, made once."""
    folder, made = tmp_path_factory.mktemp("onnx"), {}

    def file(name, form):
        build, method, options = MODELS[name]
        path = folder / f"{name} {form}.onnx"
        if path not in made:
            model = started(build(), method, **options)
            before = {key: value.clone() for key, value in model.state_dict().items()}
            state = neotta.heads(model)
            states = {key: neo.streams.state() for key, neo in state.items()}
            export(model, path, form=form, preprocess=PREPROCESS, labels=LABELS, name=name)
            # the export leaves the model as it was, adaptation and all
            assert neotta.heads(model) == state
            assert all(torch.equal(neo.streams.state(), states[key]) for key, neo in state.items())
            assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
            made[path] = model
        return path

    return file


def model_of(name):
    build, method, options = MODELS[name]
    return started(build(), method, **options)


def ragged():
    generator = torch.Generator().manual_seed(8)
    return [torch.randn(size, 3, 32, 32, generator=generator) + 0.3 for size in (1, 4, 2, 7, 1)]


@torch.no_grad()
def answer(model, images):
    return logits_of(model(images)).numpy()


@pytest.mark.parametrize("name", ["timm vit", "hf vit", "network"])
def test_folded_it_is_an_ordinary_model_that_answers_as_the_adapted_one(files, name):
    path = files(name, "folded")
    proto = onnx.load(path)
    assert [port.name for port in proto.graph.input] == ["images"]
    assert [port.name for port in proto.graph.output] == ["logits"]
    model = model_of(name)
    neotta.head(model).freeze()
    classifier = OnnxClassifier(path)
    for images in ragged():
        np.testing.assert_allclose(classifier.predict(images.numpy()), answer(model, images), atol=1e-4)
    assert classifier.count == 7


def test_folded_it_is_the_graph_of_the_plain_model(files, tmp_path, images):
    export(network(), tmp_path / "plain.onnx", example=images, verify=False)
    plain, folded = (onnx.load(path).graph for path in (tmp_path / "plain.onnx", files("network", "folded")))
    assert [node.op_type for node in folded.node] == [node.op_type for node in plain.node]
    assert [list(t.dims) for t in folded.initializer] == [list(t.dims) for t in plain.initializer]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "stream" in name else []) for name in MODELS]
)
def test_adaptive_it_goes_on_as_the_model_would(files, name):
    model, classifier = model_of(name), OnnxClassifier(files(name, "adaptive"))
    for images in ragged():
        np.testing.assert_allclose(classifier.predict(images.numpy()), answer(model, images), atol=1e-4)
    for head in neotta.heads(model):
        for entry, value in state_of(model).heads[head].arrays().items():
            got = classifier.state()[f"{head}.{entry}"]
            np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-4, err_msg=entry)
    assert classifier.count == 22


def test_a_caller_can_carry_the_state_alone(tmp_path):
    """The bare graph: a state in, a state out, as any runtime would do it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    export(neotta.adapt(timm_vit(), "neo"), tmp_path / "x.onnx", form="adaptive", example=torch.zeros(1, 3, 32, 32))
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx", options)
    assert [port.name for port in session.get_inputs()] == ["images"]
    assert [port.name for port in session.get_overridable_initializers()] == ["adapt", "state"]
    assert [port.name for port in session.get_outputs()] == ["logits", "next_state"]
    model, state = neotta.adapt(timm_vit(), "neo"), {}
    for images in ragged():
        logits, after = session.run(None, {"images": images.numpy(), **state})
        state = {"state": after}
        np.testing.assert_allclose(logits, answer(model, images), atol=1e-4)
    assert (after.dtype, after.shape, after[0, 0]) == (np.float32, (1, 21), 15)


def test_the_mean_stays_right_over_a_long_stream(files):
    """What the documentation says of float32: about 6e-8 times the square root of the number of batches."""
    classifier = OnnxClassifier(files("network", "adaptive"), threads=1)
    model = network()
    generator, total, seen = torch.Generator().manual_seed(0), 0.0, 0
    classifier.reset()
    with torch.no_grad():
        for _ in range(1000):
            images = torch.randn(2, 3, 32, 32, generator=generator) + 1
            classifier.predict(images.numpy())
            total, seen = total + model.body(images).double().sum(0), seen + 2
    mean = (total / seen).numpy()
    state = classifier.state()
    error = np.abs(state["fc.total"] / state["fc.weight"] - mean).max() / np.abs(mean).max()
    assert error < 4 * 6e-8 * 1000**0.5


def test_bad_images_are_answered_and_kept_out(files):
    model, classifier = model_of("timm vit"), OnnxClassifier(files("timm vit", "adaptive"))
    images = torch.randn(3, 3, 32, 32)
    images[1] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 3"):
        got = classifier.predict(images.numpy())
    with pytest.warns(RuntimeWarning, match="1 rows"):
        wanted = answer(model, images)
    np.testing.assert_allclose(got, wanted, atol=1e-4)
    assert classifier.state()["head.tallies"].tolist() == [9, 1, 0]


def test_frozen_or_told_not_to_it_does_not_change(files):
    classifier = OnnxClassifier(files("network", "adaptive"))
    images = ragged()[1].numpy()
    before = classifier.state()
    first = classifier.predict(images, adapt=False)
    classifier.freeze()
    np.testing.assert_array_equal(classifier.predict(images), first)
    assert all(np.array_equal(before[name], value) for name, value in classifier.state().items())
    assert classifier.predict(images[:0]).shape == (0, 5)
    classifier.unfreeze()
    assert np.abs(classifier.predict(images) - first).max() > 1e-3
    assert classifier.count == 11
    classifier.reset()
    assert classifier.count == 0
    one = classifier.predict(images[:1])  # the first sample is its own mean: the bias is left
    np.testing.assert_allclose(one[0], network().fc.bias.detach().numpy(), atol=1e-5)


def test_states_travel_between_torch_and_onnx_runtime(files, tmp_path):
    model, classifier = model_of("hf vit"), OnnxClassifier(files("hf vit", "adaptive"))
    images, *rest = ragged()[1:]
    classifier.predict(images.numpy())
    classifier.save(tmp_path / "onnx.safetensors")
    neotta.load(model, tmp_path / "onnx.safetensors")
    assert neotta.head(model).count == 11
    answer(model, rest[0])
    neotta.save(model, tmp_path / "torch.safetensors")
    again = OnnxClassifier(files("hf vit", "adaptive"))
    again.load(tmp_path / "torch.safetensors")
    assert again.count == 13
    np.testing.assert_allclose(again.predict(rest[1].numpy()), answer(model, rest[1]), atol=1e-4)


def test_states_that_do_not_fit_change_nothing(files, tmp_path):
    classifier = OnnxClassifier(files("network", "adaptive"))
    before = classifier.state()
    neotta.save(started(network(), "neo", weighting="batch"), tmp_path / "method")
    neotta.save(started(timm_vit()), tmp_path / "size")
    neotta.save(started(network(seed=1)), tmp_path / "weights")
    (tmp_path / "damaged").write_bytes(b"damaged")
    neotta.save(neotta.adapt(network(), "neo", streams=True), tmp_path / "streams")
    with pytest.raises(StateMismatchError, match="many streams"):
        classifier.load(tmp_path / "streams", stream="gate")
    for name in ("method", "size", "weights"):
        with pytest.raises(StateMismatchError):
            classifier.load(tmp_path / name)
    for name in ("damaged", "nothing"):
        with pytest.raises(StateFileError):
            classifier.load(tmp_path / name)
    assert all(np.array_equal(before[name], value) for name, value in classifier.state().items())
    classifier.load(tmp_path / "weights", strict=False)


def test_what_the_file_says_of_itself(files):
    path = files("network, continual", "adaptive")
    entry = next(entry for entry in onnx.load(path).metadata_props if entry.key == "neotta")
    card = json.loads(entry.value)
    assert (card["form"], card["name"], card["neotta"]) == ("adaptive", "network, continual", neotta.__version__)
    assert (card["method"], card["options"]) == ("neo-continual", {"alpha": 0.3, "debias": True})
    assert neotta.Preprocess.from_dict(card["preprocess"]) == PREPROCESS
    assert card["labels"] == LABELS
    classifier = OnnxClassifier(path)
    assert classifier.labels == tuple(LABELS)
    assert classifier.preprocess == PREPROCESS
    assert repr(classifier) == "<OnnxClassifier 'network, continual', adaptive, count=7>"


def test_images_are_prepared_as_torch_would(files):
    classifier = OnnxClassifier(files("network", "folded"))
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (40, 50, 3), dtype=np.uint8) for _ in range(3)]
    wanted = classifier.predict(PREPROCESS.batch(pictures).numpy())
    np.testing.assert_array_equal(classifier.predict(pictures), wanted)
    np.testing.assert_array_equal(classifier.predict(np.stack(pictures)), wanted)
    np.testing.assert_array_equal(classifier.predict(PREPROCESS.batch(pictures).requires_grad_()), wanted)
    np.testing.assert_array_equal(classifier.predict([Image.fromarray(picture) for picture in pictures]), wanted)
    assert classifier.classify(pictures) == [LABELS[index] for index in wanted.argmax(1)]
    assert classifier.predict([]).shape == (0, 5)


def test_images_that_cannot_be_used(files, tmp_path):
    classifier = OnnxClassifier(files("network", "folded"))
    for bad in (np.ones((2, 3, 16, 16)), np.ones((3, 32, 32)), np.zeros((32, 32, 3), np.uint8), 3, ["x"]):
        with pytest.raises(InputError):
            classifier.predict(bad)
    export(network(), tmp_path / "bare.onnx", example=torch.zeros(1, 3, 32, 32), verify=False)
    bare = OnnxClassifier(tmp_path / "bare.onnx")
    assert bare.name == "Sequential"
    with pytest.raises(InputError, match="preprocess="):
        bare.predict(np.zeros((1, 32, 32, 3), np.uint8))
    assert bare.classify(np.zeros((1, 3, 32, 32))) == [str(answer(network(), torch.zeros(1, 3, 32, 32)).argmax())]


def test_a_folded_file_has_no_state(files, tmp_path):
    classifier = OnnxClassifier(files("network", "folded"))
    for act in (classifier.reset, classifier.freeze, classifier.state, lambda: classifier.save(tmp_path / "x")):
        with pytest.raises(NotAdaptedError, match="folded"):
            act()


def test_files_that_cannot_be_run(tmp_path):
    with pytest.raises(ModelLoadError, match="no file"):
        OnnxClassifier(tmp_path / "nothing.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"damaged")
    with pytest.raises(ModelLoadError, match="cannot be run"):
        OnnxClassifier(tmp_path / "damaged.onnx")


@pytest.mark.parametrize("form", ["folded", "adaptive"])
def test_a_file_with_any_bit_flipped_is_refused(files, tmp_path, form):
    content = files("network", form).read_bytes()
    chance = random.Random(0)
    places = {*range(len(content) - 120, len(content)), *(chance.randrange(len(content)) for _ in range(200))}
    damaged = tmp_path / "damaged.onnx"
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << chance.randrange(8)
        damaged.write_bytes(flipped)
        with pytest.raises(ModelLoadError):
            OnnxClassifier(damaged)
    damaged.write_bytes(content)
    OnnxClassifier(damaged)


def test_other_peoples_files_are_for_the_logit_recenter(files, tmp_path):
    proto = onnx.load(files("network", "folded"))
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "other.onnx")
    with pytest.raises(ModelLoadError, match="LogitRecenter"):
        OnnxClassifier(tmp_path / "other.onnx")


def test_options_of_the_session(files):
    with pytest.raises(OptionError, match="NoSuchProvider"):
        OnnxClassifier(files("network", "folded"), providers=["NoSuchProvider"])
    with pytest.raises(OptionError, match="threads"):
        OnnxClassifier(files("network", "folded"), threads=0)


def test_threads_lose_no_update(files):
    classifier = OnnxClassifier(files("network", "adaptive"), threads=1)
    classifier.reset()
    batches = [torch.randn(3, 3, 32, 32).numpy() for _ in range(40)]
    threads = [threading.Thread(target=lambda part=part: [classifier.predict(x) for x in part]) for part in
               (batches[0::4], batches[1::4], batches[2::4], batches[3::4])]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        mean = network().body(torch.from_numpy(np.concatenate(batches))).mean(0)
    assert classifier.count == 120
    state = classifier.state()
    np.testing.assert_allclose(state["fc.total"] / state["fc.weight"], mean.numpy(), atol=1e-5)


def test_models_that_cannot_be_exported(tmp_path, images):
    path = tmp_path / "model.onnx"
    with pytest.raises(NotAdaptedError):
        export(network(), path, form="adaptive", example=images)
    with pytest.raises(UnsupportedModelError, match="neo-bn"):
        export(neotta.adapt(network(), "neo-bn"), path, form="adaptive", example=images)
    with pytest.raises(UnsupportedModelError, match="folded"):
        export(neotta.adapt(network(), "neo-bn", statistics="batch"), path, example=images)
    with pytest.raises(UnsupportedModelError, match="float32"):
        export(network().half(), path, example=images)
    with pytest.raises(OptionError, match="example="):
        export(network(), path)
    with pytest.raises(UnknownNameError, match="form"):
        export(network(), path, form="folding", example=images)
    for opset in (17, 1000, "18"):
        with pytest.raises(OptionError, match="from 18 to"):
            export(network(), path, example=images, opset=opset)
    with pytest.raises(ModelError, match=r"pass its \.model"):
        export(neotta.create("neo", network()), path, example=images)
    with pytest.raises(OptionError, match="3 labels for a model of 5"):
        export(network(), path, example=images, labels="abc")
    with pytest.raises(InputError, match="example"):
        export(network(), path, example=images[0])

    class Undecided(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 5)

        def forward(self, images):
            return self.fc(images.mean((2, 3))) if images.sum() > 0 else self.fc(images.amax((2, 3)))

    with pytest.raises(UnsupportedModelError, match="Undecided cannot be exported"):
        export(Undecided(), path, example=images)
    assert not list(tmp_path.iterdir())


def test_a_file_that_disagrees_is_not_written(tmp_path, images):
    class Moody(torch.nn.Module):
        """Answers differently while it is traced."""

        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 5)

        def forward(self, images):
            return self.fc(images.mean((2, 3))) + (0.001 if torch.compiler.is_compiling() else 0)

    path = tmp_path / "model.onnx"
    path.write_text("the old file")
    with pytest.raises(ModelError, match=r"disagree, by 0\.001 in logits of a batch of 1"):
        export(Moody(), path, example=images)
    with pytest.raises(ModelError, match="disagree"):
        export(neotta.adapt(Moody(), "neo"), path, form="adaptive", example=images)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("model.onnx", "the old file")]


def test_neo_bn_folds_its_moving_statistics(tmp_path, images):
    model = started(network(), "neo-bn", statistics="ema")
    export(model, tmp_path / "bn.onnx", example=images)
    neotta.head(model).freeze()
    np.testing.assert_allclose(
        OnnxClassifier(tmp_path / "bn.onnx").predict(images.numpy()), answer(model, images), atol=1e-4
    )


@pytest.mark.parametrize("form", ["folded", "adaptive"])
def test_one_stream_of_many_is_exported_as_a_model_of_its_own_would_be(tmp_path, images, form):
    many, alone = neotta.adapt(network(), "neo", streams=True, shrinkage="james-stein"), network()
    neotta.adapt(alone, "neo", shrinkage="james-stein")
    with torch.no_grad(), neotta.streams(["gate", "gate", "yard", "yard", "gate", "gate"]):
        many(images)
    answer(alone, images[2:4])
    export(many, tmp_path / "yard.onnx", form=form, example=images, stream="yard", verify=False)
    classifier = OnnxClassifier(tmp_path / "yard.onnx")
    assert classifier.count == 2
    if form == "folded":
        neotta.head(alone).freeze()
    for batch in ragged():
        np.testing.assert_allclose(classifier.predict(batch.numpy()), answer(alone, batch), atol=1e-4)
    assert neotta.head(many).streams.counts() == {"gate": 4, "yard": 2}


def test_streams_that_cannot_be_exported(tmp_path, images):
    many = neotta.adapt(network(), "neo", streams=True)
    with pytest.raises(InputError, match="name a stream, for example stream='gate'"):
        export(many, tmp_path / "x.onnx", example=images)
    with pytest.raises(InputError, match="no stream 'yard'"):
        export(many, tmp_path / "x.onnx", example=images, stream="yard")
    with pytest.raises(InputError, match="this model has no streams"):
        export(neotta.adapt(network(), "neo"), tmp_path / "x.onnx", example=images, stream="yard")
    with pytest.raises(NotAdaptedError):
        export(network(), tmp_path / "x.onnx", example=images, stream="yard")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rule", ["neo", "neo-stream"])
@pytest.mark.parametrize("build", [timm_vit, hf_vit, network])
def test_the_logits_of_a_plain_file_are_recentered_as_the_layer_would(tmp_path, build, rule):
    path, model = tmp_path / "plain.onnx", build()
    export(model, path, example=torch.zeros(1, 3, 32, 32), verify=False)
    plain, recenter = OnnxClassifier(path), LogitRecenter.from_onnx(path, rule)
    neotta.adapt(model, rule)
    for images in ragged():
        np.testing.assert_allclose(recenter.recenter(plain.predict(images.numpy())), answer(model, images), atol=1e-4)


@pytest.mark.parametrize("form", ["folded", "adaptive"])
def test_a_file_that_was_quantized_still_runs_and_adapts(tmp_path, form):
    from onnxruntime.quantization import quantize_dynamic

    loaded = neotta.load_model("digits")  # trained: quantizing a random network changes its answers
    neotta.adapt(loaded.model, "neo")
    export(loaded, tmp_path / "whole.onnx", form=form, verify=False)
    quantize_dynamic(tmp_path / "whole.onnx", tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size < 0.8 * (tmp_path / "whole.onnx").stat().st_size
    whole, small = (OnnxClassifier(tmp_path / name) for name in ("whole.onnx", "small.onnx"))
    assert (small.form, small.labels, small.preprocess) == (whole.form, whole.labels, whole.preprocess)
    pictures = np.split((digits().images[:200] * 0.5 + 80).astype(np.uint8), 4)
    same = [np.array(whole.classify(batch)) == np.array(small.classify(batch)) for batch in pictures]
    assert np.mean(same) > 0.95
    assert small.count == whole.count == (0 if form == "folded" else 200)


def test_what_is_adapted_already_is_not_recentered_again(files):
    with pytest.raises(AlreadyAdaptedError, match="OnnxClassifier"):
        LogitRecenter.from_onnx(files("network", "adaptive"))
    with pytest.raises(AlreadyAdaptedError, match="7 samples in its bias"):
        LogitRecenter.from_onnx(files("network", "folded"))


WITHOUT_TORCH = """
import sys
for name in ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript", "scipy", "pydantic"):
    sys.modules[name] = None  # importing it is an ImportError
sys.modules["PIL"] = None
import numpy as np
from neotta.deploy import OnnxClassifier
classifier = OnnxClassifier(sys.argv[1])
classifier.predict(np.zeros((2, 3, 32, 32)), adapt=False)
del sys.modules["PIL"]  # which pictures need
pictures = np.load(sys.argv[2])
logits = classifier.predict(pictures)
classifier.save(sys.argv[3])
classifier.reset()
classifier.load(sys.argv[3])
np.save(sys.argv[2], np.stack([logits, classifier.predict(pictures)]))
print(classifier.count, classifier.classify(pictures[:1], adapt=False))
"""


def test_the_runner_needs_no_torch(files, tmp_path):
    path = files("network", "adaptive")
    pictures = np.random.default_rng(0).integers(0, 256, (4, 40, 50, 3), dtype=np.uint8)
    np.save(tmp_path / "pictures.npy", pictures)
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, path, tmp_path / "pictures.npy", tmp_path / "state"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    model, images = model_of("network"), PREPROCESS.batch(pictures)
    wanted = np.stack([answer(model, images), answer(model, images)])
    np.testing.assert_allclose(np.load(tmp_path / "pictures.npy"), wanted, atol=1e-4)
    neotta.head(model).freeze()
    assert done.stdout == f"15 {[LABELS[answer(model, images[:1]).argmax()]]}\n"
    neotta.load(model, tmp_path / "state")
    assert neotta.head(model).count == 11


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch, images):
    acts = {
        "onnxruntime": lambda: OnnxClassifier(tmp_path / "x"),
        "onnx": lambda: LogitRecenter.from_onnx(tmp_path / "x"),
        "onnxscript": lambda: export(network(), tmp_path / "x", example=images),
    }
    for package, act in acts.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)  # importing it is an ImportError
            with pytest.raises(MissingExtraError, match=rf"{package!r}.*neotta\[onnx\]"):
                act()


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, neotta.deploy; print({'torch', 'numpy', 'onnx', 'onnxruntime'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_tensors_in_another_file_are_not_loaded(files, tmp_path, monkeypatch):
    """The checksum does not cover them, wherever they are."""
    from onnx.external_data_helper import convert_model_to_external_data

    model = onnx.load(files("timm vit", "folded"))
    convert_model_to_external_data(model, location="weights.bin", size_threshold=1024)
    path = tmp_path / "model.onnx"
    for entry in model.metadata_props:
        entry.value = NO_CHECKSUM if entry.key == CHECKSUM_KEY else entry.value
    onnx.save(model, path)
    path.write_bytes(with_checksum(path.read_bytes()))
    assert (tmp_path / "weights.bin").exists()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="xternal"):
        OnnxClassifier(path)
