"""The executor of a running service: it builds and times there, and this process only waits."""

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kernelwright.problems import Problem
from kernelwright.sandbox.pool.protocol import Answer, Device, ExecutorError, Product, Stage, Work
from kernelwright.sandbox.pool.remote.job_settings import chosen_for_jobs
from kernelwright.sandbox.pool.remote.service_client import RefusedJob, ServiceClient, job_request
from kernelwright.sandbox.verdict.judge_version import other_version
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Verdict

VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)


class RemoteExecutor:
    """See `Executor`. Its devices are places in the service's queue, under the conditions of the devices there."""

    builders: int
    takes_turns = False

    def __init__(self, settings: Settings, server: str) -> None:
        """Raises `ExecutorError` for settings that are the service's own to choose, and for what is no address."""
        self._asks = chosen_for_jobs(settings)
        self._place = "cuda" if settings.gpu else "cpu"
        self._client = ServiceClient(server)
        self.builders = 1

    async def open(self) -> tuple[Device, ...]:
        """As many as it takes to keep the service busy."""
        facts = await self._client.facts()
        if (differs := other_version(facts)) is not None:
            server = self._client.server
            raise ExecutorError(f"the service at {server} is another version ({differs}); start this one there")
        devices = [Device.model_validate(one) for one in facts["devices"].get(self._place, ())]
        if not devices:
            there = ", ".join(sorted(facts["devices"])) or "none"
            raise ExecutorError(f"the service at {self._client.server} has no {self._place}; it has: {there}")
        first, self.builders = devices[0], 2 * int(facts["room"][self._place])
        asked = json.dumps(json.loads(first.conditions.settings) | self._asks, sort_keys=True)
        conditions = first.conditions.model_copy(update={"settings": asked})
        return tuple(
            first.model_copy(update={"node": self._client.server, "ordinal": number, "conditions": conditions})
            for number in range(self.builders)
        )

    async def build(self, work: Work) -> Answer | Product:
        """Nothing: the service builds when it is asked to judge."""
        return Product("")

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        try:
            request = job_request(work.problem, work.candidate.source, self._asks | work.asks, self._place)
            own = {"stage": stage, "fresh": work.fresh, "effort": work.effort, "beat": work.beat}
            job = await self._client.judge(request | own)
        except RefusedJob as error:
            return Answer(trouble=str(error))
        return answer_of(job)

    async def revive(self, device: Device) -> bool:
        return True

    def release(self, problem: Problem) -> None:
        """See `Executor`; the service decides what it keeps."""

    async def close(self) -> None:
        """See `Executor`; there is nothing to end."""


def answer_of(job: dict[str, Any]) -> Answer:
    """What a job that has ended says, as a worker of our own would."""
    if job["verdict"] is not None:
        try:
            return Answer(verdict=VERDICT.validate_python(job["verdict"]))
        except ValidationError:
            return Answer(trouble="the service's verdict can not be read; ask one of this version")
    error = job["error"] or {"message": "the job was cancelled"}
    return Answer(
        trouble=error["message"],
        broken_problem=error.get("whole_problem", False),
        unsupported=error.get("unsupported", False),
        machine_lacks=error.get("machine_lacks", False),
    )
