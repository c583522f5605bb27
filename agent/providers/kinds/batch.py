"""`batch`: nobody yet; the asks stay open in the run's log, and go out as a batch of a service."""

from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.providers.options import ProviderOptions
from kernelwright.agent.providers.provider import AnswerPending, Provider, RunRecord
from kernelwright.agent.providers.servers.batch_file import PROVIDER
from kernelwright.prompts import Prompt


class BatchProvider:
    """Answers nothing; `servers/batch_file.py` logs the answers that come from elsewhere, under the same name."""

    name = PROVIDER

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """Raises `AnswerPending` always."""
        raise AnswerPending(
            "the asks wait for a batch: `kernelwright batch export`, send the file, `kernelwright batch import`, "
            "then `kernelwright resume`"
        )


def provider(options: ProviderOptions, run: RunRecord) -> Provider:
    return BatchProvider()
