"""The conventions of scikit-learn for an estimator, without scikit-learn."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import numpy as np

from neotta.errors import InputError, OptionError
from neotta.neo.statefile import Array

Self = TypeVar("Self", bound="Estimator")


class Estimator:
    """Named parameters that the constructor only stores, so that an estimator can be cloned and searched over."""

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name. `deep` is there for scikit-learn: no parameter is an estimator itself."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self: Self, **params: Any) -> Self:
        """Change parameters; they are checked when the estimator is next used."""
        known = self._defaults()
        for name in params:
            if name not in known:
                raise OptionError(f"Invalid parameter {name!r} of {type(self).__name__}: it takes {', '.join(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        changed = []
        for name, default in self._defaults().items():
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                changed.append(f"{name}=<{'x'.join(map(str, value.shape))}>")
            elif value is not default and value != default:
                changed.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of an estimator; called by scikit-learn alone, so it is there to be imported."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            input_tags=InputTags(allow_nan=True),
        )


def matrix(values: Any, name: str, columns: int | None = None) -> Array:
    """Check a table of numbers, (B, C); C has to be `columns` if given. Floating dtypes are kept.

    The words of the errors are those that scikit-learn's users, and its checks, know.
    """
    if hasattr(values, "toarray"):
        raise InputError(f"{name} takes a dense array, got a sparse {type(values).__name__}: call its toarray()")
    table = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if np.iscomplexobj(table):
        raise InputError(f"Complex data not supported: {name} takes real numbers")
    if not np.issubdtype(table.dtype, np.floating):
        try:
            table = table.astype(np.float64)
        except ValueError as error:  # what is no number at all is Python's TypeError
            raise InputError(f"{name} takes numbers: {error}") from error
    if table.ndim != 2:
        raise InputError(
            f"Expected 2D array, got {table.ndim}D array instead: {name} takes (samples, classes). "
            "Reshape your data with x.reshape(1, -1) if it is one sample"
        )
    if table.shape[1] == 0:
        raise InputError(f"0 feature(s) (shape={table.shape}) while a minimum of 1 is required by {name}.")
    if columns is not None and table.shape[1] != columns:
        raise InputError(f"X has {table.shape[1]} features, but {name} is expecting {columns} features as input")
    return table
