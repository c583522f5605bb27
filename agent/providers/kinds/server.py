"""`server`: any server that speaks chat completions or responses. On the command line it goes by its preset's name."""

from kernelwright.agent.providers.options import ProviderOptions
from kernelwright.agent.providers.provider import Provider, RunRecord
from kernelwright.agent.providers.servers.client import OpenAIProvider


def provider(options: ProviderOptions, run: RunRecord) -> Provider:
    """A missing key and a malformed address are told here."""
    return OpenAIProvider(options.server)
