"""ResNet-50: inference in bfloat16, or a training step in float32, on random weights.

    python examples/card/resnet50.py infer|train [small]

That of torchvision where it is installed; else the same network, written here. Inference is of 64 images, laid out
with their channels last, which is how cuDNN has them in bfloat16.
"""

import sys

import torch
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, before: int, inner: int, stride: int):
        super().__init__()
        after = 4 * inner
        self.conv1, self.bn1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        width, stages = 64, []
        for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                stages.append(Bottleneck(width, inner, 1 if number else stride))
                width = 4 * inner
        self.stages, self.fc = nn.Sequential(*stages), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.stages(self.stem(x)).mean((2, 3)))


def network() -> nn.Module:
    """Torchvision's, or ours."""
    try:
        from torchvision.models import resnet50
    except (ImportError, RuntimeError):  # the latter where its build does not fit torch's
        return ResNet()
    return resnet50()


def main(mode: str, small: bool) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, size = (2, 64) if small else (64, 224)
    model = network().to(device)
    x = torch.randn(batch, 3, size, size, device=device)
    if mode == "infer":
        model, x = model.bfloat16().eval(), x.bfloat16().contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            for _ in range(5):
                model(x)
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wanted = torch.randint(0, 1000, (batch,), device=device)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), wanted).backward()
        optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], "small" in sys.argv)
