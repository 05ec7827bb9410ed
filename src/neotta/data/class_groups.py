"""Categories of data that stand for several classes of a model, as in a file `class-groups.json` beside the images."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from neotta.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

FILE = "class-groups.json"


class ClassGroups(NamedTuple):
    """The outputs of a model for each category of some data."""

    outputs: dict[str, list[int]]

    @classmethod
    def of(cls, groups: Mapping[str, Sequence[int | str]], labels: Sequence[str] | None, classes: int) -> ClassGroups:
        """Find the outputs of a model with so many classes, by their numbers or by their names in its labels."""
        numbers = {name: place for place, name in enumerate(labels or ())}
        found = {name: [numbers.get(str(each), each) for each in members] for name, members in groups.items()}
        for name, members in found.items():
            for each in members:
                if not isinstance(each, int) or not 0 <= each < classes:
                    raise DataError(f"{FILE}: {name!r} has the class {each!r}, which is none of the model's {classes}")
        return cls({name: [int(each) for each in members] for name, members in found.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """The categories in the order of the labels."""
        return tuple(self.outputs)

    def scores(self, logits: Tensor) -> Tensor:
        """Logits of the categories, (N, G), from those of the classes, (N, C).

        The probability of a category is in proportion to the mean of its classes' (Geirhos et al., 2019): with the sum,
        categories of many classes would win.
        """
        import torch

        rows = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        parts = [rows[:, members].logsumexp(1) - math.log(len(members)) for members in self.outputs.values()]
        return torch.stack(parts, 1)


def read_class_groups(folder: Path) -> dict[str, list[int | str]] | None:
    """The classes of a model, by name or number, for each category: the file in a folder or beside it; None without."""
    path = next((each for each in (folder / FILE, folder.absolute().parent / FILE) if each.is_file()), None)
    if path is None:
        return None
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{str(path)!r} cannot be read: {error}") from error
    members = list(groups.values()) if isinstance(groups, dict) else []
    if not members or not all(isinstance(each, list) and each for each in members):
        raise DataError(f'{str(path)!r} has no classes for each category, as in {{"cat": [281, "n02123159"]}}')
    every = [str(each) for several in members for each in several]
    if len(set(every)) < len(every):
        twice = next(each for each in every if every.count(each) > 1)
        raise DataError(f"{str(path)!r} has the class {twice} twice: a class belongs to one category")
    return {str(name): list(several) for name, several in groups.items()}
