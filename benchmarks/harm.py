"""Streams on which re-centering can do harm: the plain model, NEO and what `neotta.adapt(model)` does.

    python benchmarks/harm.py

Everything is clean, so there is nothing to gain: any difference is harm. The encoder is that of the
bundled digits; the heads with two classes and with tags are linear probes trained on its embeddings of the training
images. `neotta paper real-streams` has the streams of shifted images, on any model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import neotta
from neotta.data.handwritten import digits
from neotta.errors import NeottaError

POSITIVE = 3
TAGS = (1, 4, 7)  # each is there in a tenth of the images


def embeddings() -> dict[str, tuple[Tensor, Tensor]]:
    """Embeddings and labels of both parts of the digits."""
    loaded = neotta.load_model("digits")
    encoder, _ = neotta.split(loaded.model)
    found = {}
    for part in ("train", "test"):
        data = digits(part)
        images = torch.stack([loaded.preprocess(data.read(row)) for row in range(len(data))])
        with torch.inference_mode():
            rows = torch.cat([encoder(batch) for batch in images.split(256)])
        found[part] = (rows.clone(), torch.from_numpy(data.labels))
    return found


def probe(rows: Tensor, targets: Tensor, outputs: int, loss: nn.Module) -> nn.Module:
    """A linear head trained on embeddings, behind an identity, so that it is a model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(rows.shape[1], outputs))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss(model(rows), targets).backward()
        optimizer.step()
    return model.eval()


def online(model: nn.Module, rows: Tensor, right: Callable[[Tensor, slice], Tensor], batch: int) -> float:
    """Share of right answers of a model that adapts as it goes, in %."""
    parts = [slice(start, start + batch) for start in range(0, len(rows), batch)]
    with torch.inference_mode():
        return 100 * float(torch.cat([right(model(rows[part]), part) for part in parts]).float().mean())


def measure(name: str, build: Callable[[], nn.Module], rows: Tensor, right: Callable[[Tensor, slice], Tensor]) -> None:
    """One line of the table."""
    cells = []
    for method in (None, "neo", "default"):
        model = build()
        try:
            if method is not None:
                model = neotta.adapt(model) if method == "default" else neotta.adapt(model, method)
            cells.append(f"{online(model, rows, right, 16):6.1f}")
        except NeottaError as error:
            cells.append(type(error).__name__)
    print(f"{name:48} {cells[0]:>8} {cells[1]:>8} {cells[2]:>20}")


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    parts = embeddings()
    (train, truth), (test, labels) = parts["train"], parts["test"]
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(test)))
    test, labels = test[order], labels[order]
    head = neotta.split(neotta.load_model("digits").model)[1]

    def ten() -> nn.Module:
        return nn.Sequential(nn.Identity(), nn.Linear(head.in_features, 10)).eval().requires_grad_(False)

    def digits_head() -> nn.Module:
        model = ten()
        model[1].load_state_dict({"weight": head.weight.detach(), "bias": head.bias.detach()})
        return model

    print(f"{'clean stream':48} {'plain':>8} {'NEO':>8} {'neotta.adapt(model)':>20}")
    classes = {"all digits, mixed": torch.arange(len(test)), "sorted by class": labels.argsort(stable=True)}
    classes["one digit only"] = torch.nonzero(labels == POSITIVE)[:, 0]
    classes["two digits only"] = torch.nonzero((labels == POSITIVE) | (labels == 8))[:, 0]
    for name, chosen in classes.items():
        rows, wanted = test[chosen], labels[chosen]
        measure(name, digits_head, rows, lambda answers, part, wanted=wanted: answers.argmax(1) == wanted[part])
    rare = (truth == POSITIVE).long()
    wanted = (labels == POSITIVE).long()
    measure(
        "two classes, 10 % positives",
        lambda: probe(train, rare, 2, nn.CrossEntropyLoss()),
        test,
        lambda answers, part: answers.argmax(1) == wanted[part],
    )
    tags = torch.stack([truth == tag for tag in TAGS], 1).float()
    shown = torch.stack([labels == tag for tag in TAGS], 1)
    measure(
        "three rare tags, sigmoid",
        lambda: probe(train, tags, len(TAGS), nn.BCEWithLogitsLoss()),
        test,
        lambda answers, part: ((answers > 0) == shown[part]).all(1),
    )


if __name__ == "__main__":
    main()
