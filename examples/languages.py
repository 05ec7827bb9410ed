"""Text: which language is this message in? A classifier of Django's messages meets those of Sphinx.

Both are real texts by volunteers, and on PyPI: the script downloads the two wheels (12 MB) with pip, reads the
translations in them, trains a small network on Django's, and shows how each method does on Django's held-out messages,
on Sphinx's, and on Sphinx's typed without accents; with languages mixed, and with one language after the other.

    python examples/languages.py

It takes a minute or two on a laptop. Only torch, neotta and pip are needed.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import neotta

WHEELS = {"django": "django==5.2.8", "sphinx": "sphinx==8.2.3"}
LANGUAGES = [
    *("ca", "cs", "da", "de", "es", "et", "eu", "fi", "fr", "gl", "hr", "hu", "id"),
    *("it", "lt", "lv", "nl", "pl", "pt", "ro", "sk", "sl", "sq", "sv", "tr"),
]
METHODS = ("none", "neo", "neo-stream", "neo-continual", "t3a", "lame", "tent")
BUCKETS, WIDTH, LONGEST, BATCH = 8192, 64, 160, 16

Samples = list[tuple[str, int]]


class Languages(nn.Module):
    """The mean of the embeddings of hashed letters, pairs and triples; a norm layer; a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(BUCKETS, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, len(LANGUAGES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """From hashes, (B, T), and which of them are no padding, to logits, (B, C)."""
        mask = attention_mask[..., None]
        pooled = (self.embed(input_ids) * mask).sum(dim=1) / mask.sum(dim=1)
        return self.out(self.middle(self.mix(pooled).relu()))


def messages(wheel: Path) -> dict[str, list[str]]:
    """The translated messages in a wheel, by language."""
    found: dict[str, dict[str, None]] = {language: {} for language in LANGUAGES}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            match = re.search(r"locale/([^/]+)/LC_MESSAGES/\w+\.mo$", name)
            if match and match[1] in found:
                found[match[1]].update(dict.fromkeys(catalog(archive.read(name))))
    return {language: list(texts) for language, texts in found.items()}


def catalog(content: bytes) -> list[str]:
    """The translations in a .mo file of gettext that are sentences rather than labels, without their markup."""
    order = "<" if content[:4] == b"\xde\x12\x04\x95" else ">"
    count, originals, translations = struct.unpack(f"{order}8xIII", content[:20])
    texts = []
    for index in range(count):
        pair = []
        for table in (originals, translations):
            length, start = struct.unpack_from(f"{order}II", content, table + 8 * index)
            pair.append(content[start : start + length].split(b"\0")[0].decode("utf-8"))
        text = re.sub(r"%\(\w+\)\w|%\w|\{\w*\}|<[^>]*>|[`'\"*:_\\|\d/.-]+", " ", pair[1])
        text = " ".join(text.split()).lower()
        if pair[0] and pair[1] != pair[0] and len(text.split()) >= 3:
            texts.append(text)
    return texts


def without_accents(text: str) -> str:
    """The same text as typed on a keyboard without accents."""
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))


def drawn(texts: dict[str, list[str]], each: int, seed: int) -> Samples:
    """As many messages of every language, by language."""
    draw = random.Random(seed)
    return [
        (text, label)
        for label, language in enumerate(LANGUAGES)
        for text in draw.sample(texts[language], min(each, len(texts[language])))
    ]


def batch_of(samples: Samples) -> tuple[dict[str, Tensor], Tensor]:
    """What the model takes, and the labels."""
    rows = [hashes(text) for text, _ in samples]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1.0] * len(row) + [0.0] * (length - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}, torch.tensor([label for _, label in samples])


def hashes(text: str) -> list[int]:
    """Numbers for all letters, pairs and triples; the same in every process."""
    padded = f" {text} "
    parts = [padded[at : at + size] for size in (1, 2, 3) for at in range(len(padded) - size + 1)]
    return [sum(ord(letter) * 31**place for place, letter in enumerate(part)) * 7 % BUCKETS for part in parts][:LONGEST]


def train(samples: Samples, seed: int, epochs: int) -> Languages:
    """A model trained on messages with labels."""
    torch.manual_seed(seed)
    model, draw = Languages(), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(epochs):
        for start in range(0, len(samples), 64):
            inputs, labels = batch_of(draw.sample(samples, 64) if start else samples[:64])
            optimizer.zero_grad()
            F.cross_entropy(model(**inputs), labels).backward()
            optimizer.step()
    return model.eval()


def accuracy(method: str, model: nn.Module, samples: Samples) -> float:
    """Share of messages that a method gets right, in this order, in batches, while it adapts."""
    adapter = neotta.create(method, model, example=batch_of(samples[:2])[0])
    right = 0
    for start in range(0, len(samples), BATCH):
        inputs, labels = batch_of(samples[start : start + BATCH])
        right += int((adapter(inputs).argmax(dim=1) == labels).sum())
    return 100 * right / len(samples)


def download(folder: Path) -> dict[str, Path]:
    """The wheels, in this folder."""
    for name, wheel in WHEELS.items():
        if not list(folder.glob(f"{name}-*.whl")):
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", wheel]
            subprocess.run([*command, "-d", str(folder)], check=True)
    return {name: next(folder.glob(f"{name}-*.whl")) for name in WHEELS}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the wheels are, or are downloaded to (default: temporary)")
    parser.add_argument("--seeds", type=int, default=3, help="number of models and orders (default: 3)")
    parser.add_argument("--each", type=int, default=60, help="messages of each language to test on (default: 60)")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training (default: 6)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        texts = {name: messages(wheel) for name, wheel in download(folder).items()}
    results: dict[tuple[str, str], list[float]] = {}
    for seed in range(given.seeds):
        for (domain, order, method), value in study(texts, seed, given.each, given.epochs).items():
            results.setdefault((f"{domain}, {order}", method), []).append(value)
        print(f"model {seed + 1} of {given.seeds} is done", file=sys.stderr)
    print(f"| messages | {' | '.join(METHODS)} |\n|---|{'---|' * len(METHODS)}")
    for row in dict.fromkeys(row for row, _ in results):
        means = [f"{statistics.mean(results[row, method]):.1f}" for method in METHODS]
        print(f"| {row} | {' | '.join(means)} |")


def study(
    texts: dict[str, dict[str, list[str]]], seed: int, each: int, epochs: int
) -> dict[tuple[str, str, str], float]:
    """Accuracy of a model with this seed by domain, order and method."""
    draw = random.Random(seed)
    django = {language: draw.sample(found, len(found)) for language, found in texts["django"].items()}
    held_out = {language: found[:each] for language, found in django.items()}
    seen = {text for found in held_out.values() for text in found}
    training = [
        (t, label) for label, language in enumerate(LANGUAGES) for t in django[language][each:] if t not in seen
    ]
    model = train(draw.sample(training, len(training)), seed, epochs)
    fresh = {language: [t for t in found if t not in django[language]] for language, found in texts["sphinx"].items()}
    sphinx = drawn(fresh, each, seed)
    domains = {
        "Django": drawn(held_out, each, seed),
        "Sphinx": sphinx,
        "Sphinx without accents": [(without_accents(text), label) for text, label in sphinx],
    }
    orders = {}
    for domain, samples in domains.items():
        orders[domain, "mixed"] = draw.sample(samples, len(samples))
        orders[domain, "one language after the other"] = samples
    return {
        (domain, order, method): accuracy(method, model, samples)
        for (domain, order), samples in orders.items()
        for method in METHODS
    }


if __name__ == "__main__":
    main()
