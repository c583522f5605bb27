"""`simulated`: a made-up model, which answers at once and is judged by a made-up judge: for trying out a strategy."""

from kernelwright.agent.providers.options import ProviderOptions
from kernelwright.agent.providers.provider import Provider, RunRecord
from kernelwright.agent.providers.simulated.simulation import SimulatedProvider


def provider(options: ProviderOptions, run: RunRecord) -> Provider:
    """The same answers in every run."""
    return SimulatedProvider(latency_s=(0.0, 0.0))
