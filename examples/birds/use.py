"""The listener with the kernels of a run in it, as a program of yours would use them.

python examples/birds/use.py runs/TIME
"""

import sys

import torch
from birds import BANDS, FRAMES, Listener

from kernelwright import applied, apply


def gradients(model: torch.nn.Module, energy: torch.Tensor) -> list[torch.Tensor]:
    """Of the weights, for a loss of the outputs."""
    model.zero_grad()
    model(energy).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def main(run: str) -> None:
    """Put the kernels in, and look whether all is as before."""
    torch.manual_seed(0)
    model, energy = Listener().eval(), torch.rand(8, BANDS, FRAMES).square()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        wanted, fewer = model(energy), model(energy[:3])
    before = gradients(model, energy)

    apply(model, run)
    with torch.no_grad():
        print(f"outputs differ by {(model(energy) - wanted).abs().max():.1e} at most, of {wanted.abs().max():.1e}")
        print(f"a batch of 3 gives what it gave: {torch.equal(model(energy[:3]), fewer)}")
    after = gradients(model, energy)
    print(f"gradients differ by {max((a - b).abs().max() for a, b in zip(after, before, strict=True)):.1e} at most")
    model.load_state_dict(state)
    names = model.state_dict().keys() == state.keys() == Listener().state_dict().keys()
    print(f"the state dict has the {len(state)} names of before and loads back: {names}")
    print(applied(model))


if __name__ == "__main__":
    main(sys.argv[1])
