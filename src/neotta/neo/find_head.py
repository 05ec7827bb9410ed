"""Find the head of a classifier: the last linear layer, whose input is the embedding and whose output the logits.

It is named by the caller, or known by the conventions of timm, Hugging Face and torchvision, or found by one run of the
model: what the head returns must be what the model returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from neotta.errors import AmbiguousHeadError, HeadNotFoundError, ModelError, UnsupportedModelError
from neotta.neo.head import NEOHead
from neotta.neo.head_views import Head, close, cosine_view, exact, is_pointwise
from neotta.neo.model_inputs import Inputs, Trace, run_once, tensors
from neotta.neo.model_inputs import logits_of as logits_of

AT_LOGITS = "neotta.adapt(model, at='logits') re-centers the output itself, whatever the head is"
WHOLE = (
    "expected (batch, classes): neotta adapts classifiers of whole samples, not models for tokens, pixels or objects"
)

_PAIRS = ("head head_dist", "head dist_head", "cls_classifier distillation_classifier", "classifier classifier_distill")
_NAMES = (*map(str.split, _PAIRS), ["fc"], ["classifier"], ["heads.head"], ["heads"], ["head"])
_POOLED_FIRST = ("ClassifierHead", "NormMlpClassifierHead", "ClNormMlpClassifierHead")
_OTHER_TASKS = (  # the module and the end of the name of a class, and what its models do
    ("torchvision.models.detection", "", "finds objects"),
    ("torchvision.models.segmentation", "", "classifies pixels"),
    ("torchvision.models.optical_flow", "", "estimates motion"),
    ("segmentation_models_pytorch", "", "classifies pixels"),
    ("transformers", "Segmentation", "classifies pixels"),
    ("transformers", "ForObjectDetection", "finds objects"),
)
_QUANTIZED = ("quant", "8bit", "4bit", "fp8")
_QUANTIZERS = ("torch.ao.", "torchao", "bitsandbytes", "optimum.quanto", "hqq", "awq", "gptqmodel")


def find_heads(
    model: nn.Module, head: str | Sequence[str] | None = None, example: Inputs | None = None
) -> dict[str, Head]:
    """Find the head of a classifier, or the two heads of a distilled one: linear layers, 1x1 convolutions, or views.

    A name, or several, skips the search. If an example is given, the model is always run.
    """
    if example is not None:
        tensors(example, "example")
    model = uncompiled(model)
    result = _search(model, example) if head is None else _named(model, [head] if isinstance(head, str) else head)
    if isinstance(result, ModelError):
        raise result
    return result


def joined_heads(model: nn.Module, example: Inputs | None = None) -> list[str]:
    """Names of the linear layers whose outputs are combined into the logits; empty if unknown."""
    model = uncompiled(model)
    result = _search(model, example)
    if not isinstance(result, ModelError):
        return list(result)
    names = candidates(model)
    seen = run_once(model, names, example)
    return [names[module] for module in seen.joined] if seen is not None and not seen.returned else []


def _named(model: nn.Module, names: Iterable[str]) -> dict[str, Head] | ModelError:
    layers = dict(model.named_modules(remove_duplicate=False))
    heads: dict[str, Head] = {}
    for name in names:
        layer = layers.get(name.removeprefix("_orig_mod."))
        if layer is None:
            linear = [known for known, module in layers.items() if isinstance(module, nn.Linear)]
            return HeadNotFoundError(f"{_kind(model)} has no layer {name!r}: its linear layers are {_some(linear)}")
        if (reason := _why_not(model, name, layer)) is not None:
            return reason
        heads[name] = layer
    return heads


def _search(model: nn.Module, example: Inputs | None) -> dict[str, Head] | ModelError:
    if isinstance(model, nn.Linear):
        return HeadNotFoundError("the model is itself a Linear layer: use neotta.NEOHead(model)")
    if (reason := other_task(model)) is not None:
        return reason
    names = {module: name for name, module in model.named_modules()}
    usual = _by_convention(model)
    problem = next((error for layer in usual if (error := _why_not(model, names[layer], layer)) is not None), None)
    if problem is not None and of_a_library(model):
        return problem
    if problem is None and usual and example is None and _is_certain(model, usual):
        return {names[layer]: layer for layer in usual}  # type: ignore[misc]
    names = candidates(model)
    seen = run_once(model, names, example) if names else None
    if seen is not None:
        return heads_in(model, names, seen, usual, problem)
    if problem is not None:
        return problem
    if names and _wrapped(last := list(names)[-1]) and (reason := _why_not(model, names[last], last)) is not None:
        return reason
    if not names:
        return HeadNotFoundError(f"{_kind(model)} has no linear layer to adapt: {AT_LOGITS}")
    linear = _some(name for layer, name in names.items() if isinstance(layer, nn.Linear))
    hint = "or pass a batch that the model takes as example=..."
    if usual and of_a_library(model):
        return AmbiguousHeadError(
            f"the output of {_kind(model)} may come from several Linear layers ({linear}): "
            f"name them, for example head={[names[layer] for layer in usual]}, {hint}"
        )
    return HeadNotFoundError(
        f"the head of {_kind(model)} was not recognised: name it with head='...' (linear layers: {linear}), {hint}"
    )


# ---- by convention


def of_a_library(model: nn.Module) -> bool:
    """Whether the class itself, not only a base class, is a library's, so that its names are reliable."""
    return type(uncompiled(model)).__module__.partition(".")[0] in ("timm", "transformers", "torchvision")


def other_task(model: nn.Module) -> ModelError | None:
    """Why a model is not a classifier of whole samples, if its class or its methods say so."""
    for kind in type(model).__mro__:
        for module, end, does in _OTHER_TASKS:
            if kind.__module__.startswith(module) and kind.__name__.endswith(end):
                return HeadNotFoundError(f"{_kind(model)} {does}, {WHOLE}")
    if compares_with_texts(model) and not _by_convention(model):
        return HeadNotFoundError(
            f"{_kind(model)} compares images with texts and has no classifier: make one from the names of your "
            "classes, neotta.adapt(neotta.zero_shot(model, processor, 'a photo of a {}', ['cat', 'dog']))"
        )
    return None


def compares_with_texts(model: nn.Module) -> bool:
    """Whether a model is CLIP-like: it embeds images and texts, and has a temperature."""
    texts, images = ("get_text_features", "encode_text"), ("get_image_features", "encode_image")
    embeds = all(any(hasattr(model, name) for name in either) for either in (texts, images))
    return embeds and getattr(model, "logit_scale", None) is not None


def _by_convention(model: nn.Module) -> list[nn.Module]:
    """The last layer of a Sequential, or what `get_classifier` returns, or what has a usual name.

    Of containers, the linear layers inside of them that have the width of the last one.
    """
    parts: list[nn.Module] = [last] if (last := _last(model)) is not None else []
    layers = dict(model.named_modules(remove_duplicate=False))
    getter = getattr(model, "get_classifier", None)
    if not parts and callable(getter):
        classifier = getter()
        parts = list(classifier) if isinstance(classifier, (tuple, list)) else [classifier]
    if not parts or not all(part in layers.values() for part in parts):
        present = {name: module for name, module in layers.items() if not isinstance(module, nn.Identity)}
        usual = next((names for names in _NAMES if all(name in present for name in names)), [])
        parts = [present[name] for name in usual]
    heads: list[nn.Module] = []
    for part in parts:
        inside = [module for module in part.modules() if isinstance(module, nn.Linear)]
        ends = isinstance(list(part.modules())[-1], (nn.Linear, nn.Dropout, nn.Identity))
        if part in inside or not inside or not ends or _wrapped(part):
            heads.append(part)
        else:
            heads += [layer for layer in inside if layer.out_features == inside[-1].out_features]
    return heads


def _last(model: nn.Module) -> nn.Linear | None:
    """The linear layer that a Sequential ends in, called once."""
    last, layers = model, [module for _, module in model.named_modules(remove_duplicate=False)]
    while type(last) is nn.Sequential and len(last):
        last = last[-1]
    return last if isinstance(last, nn.Linear) and layers.count(last) == 1 else None


def _is_certain(model: nn.Module, heads: list[nn.Module]) -> bool:
    """Whether the structure of a model proves that these heads return what it returns, together.

    timm's `get_classifier` names the last layer, but some heads pool after it; so only a head that is the model's own
    child, or that of a container known to pool first, is trusted. Transformers' names are trusted for classifiers of
    whole samples. A layer of the same size beside them may contribute as well.
    """
    if heads == [_last(model)]:
        return True
    names = [name for name, module in model.named_modules() if module in heads]
    linear = [head for head in heads if isinstance(head, nn.Linear)]
    beside = [child for child in model.children() if isinstance(child, nn.Linear) and child not in heads]
    more = {child.out_features for child in beside} & {head.out_features for head in linear}
    alone = len({name.partition(".")[0] for name in names}) == len(heads) == len(linear)
    if not of_a_library(model) or more or not alone:
        return False
    if type(model).__module__.startswith("transformers"):
        task = type(model).__name__.rpartition("For")[2]
        of_samples = ("ImageClassification", "VideoClassification", "AudioClassification", "SequenceClassification")
        return task in of_samples and names == ["classifier"]
    parents = [model.get_submodule(name.rpartition(".")[0]) for name in names]
    return all(
        parent is model or isinstance(parent, nn.Sequential) or type(parent).__name__ in _POOLED_FIRST
        for parent in parents
    )


# ---- by a run


def candidates(model: nn.Module) -> dict[nn.Module, str]:
    """Layers that may be the head, by module: linear ones, 1x1 convolutions, and others with a matrix of weights."""
    names: dict[nn.Module, str] = {}
    wrappers: tuple[str, ...] = ()
    for name, module in model.named_modules():
        wrapped = bool(name) and _wrapped(module) is not None
        linear = isinstance(module, nn.Linear) or is_pointwise(module)
        leaf = not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and not any(True for _ in module.children())
        matrix = leaf and not linear and any(weight.dim() == 2 for weight in module.parameters(recurse=False))
        if name and not name.startswith(wrappers) and (linear or matrix or wrapped):
            names[module] = name
        if wrapped:
            wrappers = (*wrappers, f"{name}.")
    return names


def heads_in(
    model: nn.Module,
    names: dict[nn.Module, str],
    seen: Trace,
    usual: Sequence[nn.Module] = (),
    problem: ModelError | None = None,
) -> dict[str, Head] | ModelError:
    """The layer that returned the logits in a run, or the usual ones if they did so together; or why there is none.

    `problem` says why the usual ones cannot be re-centered.
    """
    answers = {layer: answer for layer in seen.calls if (answer := _answer_of(seen, layer)) is not None}
    ends = [layer for layer in answers if layer in seen.returned] or list(answers)
    for layer in ends or seen.joined:
        if _wrapped(layer) and (reason := _why_not(model, names[layer], layer)) is not None:
            return reason
    for answer in (answers[layer] for layer in ends):
        if len(answer) != seen.samples or answer.dim() > 2:
            return HeadNotFoundError(f"{_kind(model)} returns {_shape(answer)} for {seen.samples} samples, {WHOLE}")
    together = set(usual) == set(ends or seen.joined) and (bool(ends) or _together(seen))
    if usual and problem is None and together:
        return {names[layer]: layer for layer in usual}  # type: ignore[misc]
    if len(ends) > 1:
        several = [names[layer] for layer in ends]
        return AmbiguousHeadError(
            f"{_kind(model)} returns the output of several layers ({_some(several)}): name one, "
            f"neotta.adapt(model, head={several[0]!r}), or all of them, neotta.adapt(model, head={several})"
        )
    if not ends:
        return _explanation(model, names, seen, problem)
    ((first, output),) = seen.calls[ends[0]]
    cosine = None if isinstance(ends[0], nn.Linear) else cosine_view(ends[0], first, output)
    if cosine is None and (reason := _why_not(model, names[ends[0]], ends[0])) is not None:
        return reason
    return {names[ends[0]]: cosine or ends[0]}  # type: ignore[dict-item]


def _answer_of(seen: Trace, layer: nn.Module) -> Tensor | None:
    """The answer of the model that is a layer's only output, or its softmax, in numbers."""
    if len(seen.calls[layer]) != 1 or not (layer in seen.returned or layer in seen.joined or not seen.joined):
        return None
    output = exact(seen.calls[layer][0].output)
    pooled = [output.mean(dim=(2, 3))] if output.dim() == 4 else []  # maps, pooled afterwards
    for answer in seen.answers:
        for each in (output, *pooled):
            if each.numel() == answer.numel() and answer.is_floating_point() and answer.dim():
                logits = each.reshape(answer.shape)
                log = logits.log_softmax(-1)
                if any(close(alike, answer) for alike in (logits, log.exp(), log)):
                    return answer
    return None


def _together(seen: Trace) -> bool:
    """Whether the logits are the mean, or the sum, of all joined layers, each called once."""
    outputs = [exact(call.output) for layer in seen.joined for call in seen.calls[layer]]
    if seen.bypassed or len(seen.answers) != 1 or len({output.shape for output in outputs}) != 1:
        return False
    if len(outputs) > len(seen.joined):
        return False  # several views of each sample, which would count as several samples
    total = torch.stack(outputs).sum(0)
    return close(total / len(outputs), seen.answers[0]) or close(total, seen.answers[0])


def _explanation(model: nn.Module, names: dict[nn.Module, str], seen: Trace, problem: ModelError | None) -> ModelError:
    joined = [names[module] for module in seen.joined]
    if len(joined) > 1 and not seen.bypassed:
        return AmbiguousHeadError(
            f"{_kind(model)} computes its logits from several layers ({_some(joined)}): "
            f"neotta.adapt(model, head={joined}) re-centers all of them; {AT_LOGITS}"
        )
    if not seen.answers:
        return HeadNotFoundError(f"the output of {_kind(model)} holds no logits: it is not a classifier of samples")
    if problem is not None:
        return problem
    if len(joined) == 1:
        calls = seen.calls[seen.joined[0]]
        if (error := tags(model, joined[0], calls[0].output, seen.answers[0])) is not None:
            return error
        many = f"is called {len(calls)} times" if len(calls) > 1 else f"returns {_shape(calls[0].output)}"
        return HeadNotFoundError(
            f"the output of {_kind(model)}, {_shape(seen.answers[0])}, is computed from the layer {joined[0]!r}, which "
            f"{many}, but is not what it returns: it is pooled, scaled, normalised or gated afterwards; {AT_LOGITS}"
        )
    linear = _some(name for layer, name in names.items() if isinstance(layer, nn.Linear))
    return HeadNotFoundError(
        f"the output of {_kind(model)} is not that of a Linear layer: {AT_LOGITS}; if a layer should be re-centered "
        f"anyway, name it with head='...' (linear layers: {linear})"
    )


def tags(model: nn.Module, name: str, output: Tensor, answer: Tensor) -> UnsupportedModelError | None:
    """The error for an answer that is the sigmoid of a layer's output: tags that do not exclude each other."""
    if output.shape != answer.shape or not close(exact(output).sigmoid(), answer):
        return None
    return UnsupportedModelError(
        f"{_kind(model)} returns the sigmoid of the layer {name!r}, so its outputs are independent tags, and how "
        "often each occurs cannot be told from a shift. With clean images it can: neotta.adapt(model, 'neo', "
        f"head={name!r}, reference=neotta.reference(model, images, head={name!r}))"
    )


# ---- a layer


def _why_not(model: nn.Module, name: str, layer: nn.Module) -> ModelError | None:
    if isinstance(layer, nn.Identity):
        return HeadNotFoundError(f"{_kind(model)} was built without a classifier (num_classes=0)")
    reason = _wrapped(layer) or _unusual(name, layer)
    return None if reason is None else HeadNotFoundError(f"head {name!r} of {_kind(model)} is {reason}")


def _wrapped(layer: nn.Module) -> str | None:
    kind, weight = type(layer), layer._parameters.get("weight")
    if kind.forward is nn.Linear.forward and type(weight) is nn.Parameter:
        return None
    named = "linear" in kind.__name__.lower()
    by_name = named and any(word in kind.__name__.lower() for word in _QUANTIZED)
    by_package = named and f"{kind.__module__}.".startswith(_QUANTIZERS)
    if by_name or by_package or type(weight).__module__.startswith(_QUANTIZERS):
        return f"quantized ({kind.__name__}): adapt and fold before quantizing"
    package = f"{kind.__module__}.{kind.__name__}".lower()
    whole = not hasattr(layer, "base_layer") and any(True for _ in layer.children())
    if ("lora" in package or "peft" in package) and not whole and not isinstance(layer, nn.Linear):
        return f"wrapped by LoRA ({kind.__name__}): merge it first (merge_and_unload)"
    return None


def _unusual(name: str, layer: nn.Module) -> str | None:
    """Why a layer is not a plain linear one or 1x1 convolution, or more than its weight and bias, if so."""
    kind, weight = type(layer), layer._parameters.get("weight")
    if not isinstance(layer, nn.Linear) and not is_pointwise(layer):
        inside = [f"{name}.{sub}" for sub, child in layer.named_modules() if isinstance(child, nn.Linear)]
        maps = [f"{name}.{sub}" for sub, child in layer.named_modules() if is_pointwise(child)]
        hint = f"name the layer with head={inside[-1]!r}" if inside else AT_LOGITS
        if maps and not inside:
            hint += f", and neotta.adapt(model, head={maps[-1]!r}) its last 1x1 convolution"
        return f"a {kind.__name__}, not a Linear: {hint}"
    if nn.utils.parametrize.is_parametrized(layer):
        return "parametrized: remove its parametrizations first"
    if weight is None:
        return "recomputed in each call (weight_norm, spectral_norm or pruning): remove that from the layer first"
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "lazy and has no weight yet: run the model once first"
    if "forward" in layer.__dict__:
        return "a layer whose forward was replaced (as accelerate does): remove that first"
    # timm's Linear only differs from nn.Linear when scripted.
    of_timm = kind.__module__.startswith("timm.layers") and kind.__name__ == "Linear"
    if kind.forward in (nn.Linear.forward, nn.Conv2d.forward) or isinstance(layer, NEOHead) or of_timm:
        return None
    return f"a {kind.__module__}.{kind.__qualname__} with a custom forward: neotta re-centers plain Linear layers"


def uncompiled(model: nn.Module) -> nn.Module:
    """The model inside a compiled one."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _shape(tensor: Tensor) -> str:
    return f"a tensor of {tuple(tensor.shape)}"


def _some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(map(repr, names[-most:])) + (f" and {len(names) - most} more" if len(names) > most else "")
