"""What the outputs of a head mean: re-centering is for scores of classes of which exactly one is right."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from neotta.errors import UnsupportedModelError


def check_outputs(model: nn.Module, heads: Iterable[nn.Linear], *, per_output: bool = False) -> None:
    """Refuse heads whose outputs are not the scores of classes that exclude each other.

    A mean of embeddings that is not the reference's holds how often each tag occurs, and a softmax over tags means
    nothing. That a model has such a head is read from the configuration of Hugging Face models, and from a head with a
    single output; a plain torch module does not say it.

    Args:
        model: The classifier.
        heads: Its linear heads.
        per_output: Whether the rule treats every output on its own and knows where clean data lies.

    Raises:
        UnsupportedModelError: The outputs are independent tags, or no classes at all.
    """
    kind = getattr(getattr(getattr(model, "_orig_mod", model), "config", None), "problem_type", None)
    if kind == "regression" or any(linear.out_features == 1 for linear in heads):
        raise UnsupportedModelError(
            f"{type(model).__name__} has a head for a single number or for regression, not for classes: re-centering "
            "would subtract the answer itself. A binary classifier needs two outputs"
        )
    if kind == "multi_label_classification" and not per_output:
        raise UnsupportedModelError(
            f"{type(model).__name__} is a multi-label model (config.problem_type): its tags are independent, and how "
            "often each occurs cannot be told from a shift. With clean images it can: neotta.adapt(model, 'neo', "
            "reference=neotta.reference(model, images))"
        )
