"""Replaying one recorded run, whatever the method."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.reoptioned import with_options

import neotta

DTYPES = {"f32": torch.float32, "f64": torch.float64}
METHODS = {"noadapt": "none", "neo_continual": "neo-continual", "neo_mse": "neo-mse", "neo_bn": "neo-bn"}
"""Names of methods in the index that differ from neotta's."""


class Golden:
    """A folder of recorded runs, and that of their models."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.models_folder = folder, models
        self.index: dict[str, Any] = json.loads((folder / "index.json").read_text())

    @cached_property
    def data(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / self.index["files"]["data"])

    @cached_property
    def models(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("golden_models", self.models_folder / "golden_models.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    def model(self, trace: dict[str, Any], dtype: torch.dtype) -> torch.nn.Module:
        model = self.models.load_model(self.index, self.models_folder, trace["model"], dtype)
        scale = trace["hyperparameters"].get("head_scale")
        if scale is not None:
            with torch.no_grad():
                for parameter in neotta.split(model).head.parameters():
                    parameter.mul_(scale)
        return model

    def tensors(self, trace_id: str, dtype: str) -> dict[str, torch.Tensor]:
        prefix = f"{trace_id}/{dtype}/"
        with safe_open(self.folder / self.index["files"]["traces"], "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


@cache
def golden() -> Golden:
    folder = Path(os.environ.get("NEOTTA_GOLDEN", Path(__file__).parent.parent / "golden"))
    return Golden(folder, folder)


@cache
def golden_field() -> Golden:
    """The second set, for the methods of the field, with the models of the first."""
    return Golden(Path(__file__).parent.parent / "golden-field", golden().folder)


@dataclass
class Context:
    """What a replay knows."""

    trace: dict[str, Any]
    kind: str
    golden: Golden
    tensors: dict[str, torch.Tensor]
    compared: set[str] = field(default_factory=set)
    memory: dict[str, Any] = field(default_factory=dict)
    """For a method's own module to keep things in between steps."""

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.kind]

    @property
    def tolerance(self) -> float:
        return self.trace["tolerance"][self.kind]

    def rounding(self, name: str) -> float:
        """How far apart two CPUs may be in float32: each as far from the exact value as the recording is."""
        if self.kind != "f32" or name not in self.exact:
            return 0.0
        difference = (self.tensors[name].double() - self.exact[name].double()).abs()
        return 2 * float(difference.nan_to_num().max()) if difference.numel() else 0.0

    @cached_property
    def exact(self) -> dict[str, torch.Tensor]:
        """The same run in float64."""
        return self.golden.tensors(self.trace["id"], "f64")

    def close(self, name: str, got: torch.Tensor, tolerance: float | None = None) -> None:
        """Compare with the recorded tensor `name`."""
        self.compared.add(name)
        wanted = self.tensors[name]
        torch.testing.assert_close(
            torch.as_tensor(got).detach().to(wanted.dtype).reshape(wanted.shape),
            wanted,
            atol=max(self.tolerance, self.rounding(name)) if tolerance is None else tolerance,
            rtol=0,
            equal_nan=True,
            msg=lambda text: f"{self.trace['id']} {self.kind} {name}: {text}",
        )

    def images(self, rows: list[int]) -> torch.Tensor:
        return self.golden.data["images"][slice(*rows)].to(self.dtype)


class Views:
    """A recorded augmentation: the view of an image is that of its row."""

    def __init__(self, context: Context, name: str) -> None:
        self.images = context.golden.data["images"].to(context.dtype)
        self.views = context.golden.data[name].to(context.dtype)
        self.rows: list[int] = []

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.rows = [self.row(image) for image in images]
        return self.views[self.rows]

    def row(self, image: torch.Tensor) -> int:
        (found,) = (self.images == image).flatten(1).all(dim=1).nonzero().flatten().tolist()
        return found


def method_of(trace: dict[str, Any]) -> str:
    """The name of the method of a trace; a loss is an option of the method it belongs to."""
    name = trace["method"]
    return trace["hyperparameters"]["base"] if name == "come" else METHODS.get(name, name)


def replay(trace: dict[str, Any], kind: str, runs: Golden | None = None) -> Context:
    """Run the steps of a trace and compare every output; the method's module compares its states."""
    runs = golden() if runs is None else runs
    context = Context(trace, kind, runs, runs.tensors(trace["id"], kind))
    method = method_of(trace)
    module = _module(METHODS.get(trace["method"], trace["method"]))
    options = dict(trace["hyperparameters"])
    options.pop("head_scale", None)
    subset = options.pop("class_subset", None)
    if hasattr(module, "options"):
        options = module.options(trace, context)
    adapter = neotta.create(
        method,
        runs.model(trace, context.dtype),
        classes=None if subset is None else runs.data[subset],
        **options,
    )
    if hasattr(module, "start"):
        module.start(adapter, trace, context)
    for index, step in enumerate(trace["steps"]):
        if step["op"] == "forward":
            output = adapter(context.images(step["rows"]), adapt=step["adapt"])
            if trace["output"] == "probabilities":
                output = output.softmax(dim=1)
            context.close(f"step{index}/output", output)
        elif step["op"] == "reset":
            adapter.reset()
        elif step["op"] == "set":
            adapter = with_options(adapter, **{step["name"]: step["value"]})
        else:
            raise ValueError(f"unknown step {step['op']!r}")
        if hasattr(module, "step"):
            module.step(adapter, trace, context, index)
    if hasattr(module, "finish"):
        module.finish(adapter, trace, context)
    return context


def final_parameters(adapter: Any, context: Context) -> None:
    """Compare every `final/param/<name>`."""
    for name in context.tensors:
        if name.startswith("final/param/"):
            context.close(name, adapter.params[name.removeprefix("final/param/")])


def recorded_parameter(adapter: Any, params: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The parameter that a trace records as `name`, trained or not; `[:4]` at the end means its first rows."""
    name, _, rows = name.partition("[:")
    tensor = params[name] if name in params else adapter.model.get_parameter(name)
    return tensor[: int(rows.rstrip("]"))] if rows else tensor


def _module(method: str) -> ModuleType | None:
    name = method.replace("-", "_")
    if importlib.util.find_spec(f"golden_replay.{name}") is None:
        return None
    return importlib.import_module(f"golden_replay.{name}")
