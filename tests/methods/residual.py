"""A small model with ResNet's module names, on features; its blocks may have squeeze-and-excitation."""

import torch
from torch import nn

from pfl_fast.models import Backbone
from pfl_fast.randomness import torch_seed
from tests.engine import small_experiments as small

WIDTH = 3


class SELayer(nn.Module):
    """Squeeze-and-excitation on features."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x * torch.sigmoid(self.fc(x))


class Block(nn.Module):
    """A residual block: linear layer, BatchNorm and optionally squeeze-and-excitation."""

    def __init__(self, squeeze):
        super().__init__()
        self.conv1 = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.se = SELayer() if squeeze else nn.Identity()

    def forward(self, x):
        return torch.relu(x + self.se(self.norm(self.conv1(x))))


class Residual(nn.Module):
    """Stem and four stages."""

    def __init__(self, inputs, blocks, squeeze):
        super().__init__()
        self.conv1 = nn.Linear(inputs, WIDTH, bias=False)
        self.bn1 = nn.BatchNorm1d(WIDTH)
        for stage in range(1, 5):
            self.add_module(f"layer{stage}", nn.Sequential(*(Block(squeeze) for _ in range(blocks))))

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x.flatten(1))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def residual(inputs=6, blocks=2, squeeze=False):
    """Stem, four stages of ``blocks`` blocks, head."""
    with torch_seed(5):
        return Backbone(Residual(inputs, blocks, squeeze), nn.Linear(WIDTH, small.CLASSES), WIDTH)
