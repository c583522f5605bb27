"""Listens for birds: the spectrogram of a recording, freed of clicks and hum, and a small network that says who sang.

python examples/birds/birds.py [seconds]
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

BANDS, FRAMES, RATE = 64, 256, 16000


class Tonal(nn.Module):
    """Keeps what lasts and drops what clicks: a soft mask of medians along time against medians across the bands."""

    def __init__(self, width: int = 9):
        super().__init__()
        self.width = width
        self.margin = nn.Parameter(torch.full((BANDS, 1), 1.2))

    def medians(self, x: torch.Tensor) -> torch.Tensor:
        reach = self.width // 2
        return F.pad(x, (reach, reach), mode="reflect").unfold(-1, self.width, 1).median(-1).values

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lasting = self.medians(x).square()
        broad = (self.margin * self.medians(x.transpose(1, 2)).transpose(1, 2)).square()
        return x * lasting / (lasting + broad + 1e-6)


class Contrast(nn.Module):
    """How far each point stands out of what is around it."""

    def __init__(self, window: tuple[int, int] = (15, 31)):
        super().__init__()
        self.window = window
        self.gain = nn.Parameter(torch.ones(BANDS, 1))

    def around(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, self.window, stride=1, padding=(self.window[0] // 2, self.window[1] // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.around(x)
        spread = (self.around(x * x) - mean * mean).clamp(min=0)
        return self.gain * (x - mean) / torch.sqrt(spread + 1e-3)


class Block(nn.Sequential):
    def __init__(self, before: int, after: int):
        super().__init__(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))


class Listener(nn.Module):
    def __init__(self, species: int = 20):
        super().__init__()
        self.tonal, self.contrast = Tonal(), Contrast()
        self.blocks = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), Block(16, 32), Block(32, 32))
        self.head = nn.Linear(32, species)

    def forward(self, energy: torch.Tensor) -> torch.Tensor:
        x = self.contrast(self.tonal(torch.log1p(10 * energy)))
        return self.head(self.blocks(x[:, None]).mean((2, 3)))


def recording(seconds: float) -> torch.Tensor:
    """Wind, and a call that rises every other second; yours would come from a file."""
    time = torch.arange(int(seconds * RATE)) / RATE
    call = torch.sin(2 * math.pi * (2500 + 800 * (time % 1)) * time) * ((time % 2) < 0.6)
    return 0.5 * call + 0.3 * torch.randn_like(time)


def windows(sound: torch.Tensor) -> torch.Tensor:
    """Spectrograms of some four seconds each."""
    spectrum = torch.stft(sound, 512, hop_length=RATE // 64, window=torch.hann_window(512), return_complex=True)
    energy = spectrum.abs().square()[1:257].unflatten(0, (BANDS, -1)).mean(1)
    count = energy.shape[1] // FRAMES
    return energy[:, : count * FRAMES].unflatten(1, (count, FRAMES)).transpose(0, 1).contiguous()


def main(seconds: float = 130.0) -> None:
    torch.manual_seed(0)
    model = Listener().eval()
    with torch.no_grad():
        for number, batch in enumerate(windows(recording(seconds)).split(8)):
            print(f"windows {8 * number} to {8 * number + len(batch) - 1}: species {model(batch).argmax(1).tolist()}")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
