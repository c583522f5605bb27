"""The hooks over a running service: what comes of an answer is the same, and the service may be killed meanwhile."""

import sys
import threading

import anyio
import pytest

from kernelwright.integrations.scoring import CompletionScorer
from kernelwright.sandbox.pool.executor import ExecutorError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from tests.support.replies import LIBRARY, OWN, REFERENCE, WRONG, posed, reply
from tests.support.service import Service

pytestmark = pytest.mark.slow
FEW = JudgeSettings(warm_up=1, worker_pairs=1, min_pairs=4, max_pairs=4, time_budget_s=0.1)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    found = Service(tmp_path_factory.mktemp("service"))
    found.client = found.start()
    yield found
    found.end()


def test_completions_are_scored_by_the_service(service, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_SERVER", service.client.at)
    with CompletionScorer(settings=FEW, load=posed) as scorer:
        right, wrong, free, none = scorer.score(
            ["scaled", "scaled", "any", "scaled"], [reply(OWN), WRONG, LIBRARY, "no code"]
        )
    assert right.reward.value > 0, right.words
    assert [one.reward.value for one in (wrong, free, none)] == [0, 0, 0]
    assert free.reward.flags == ("no_own_kernel",)


def test_a_service_that_is_killed_and_started_again_is_waited_for(service):
    with CompletionScorer(server=service.client.at, settings=FEW, load=posed) as scorer:
        (first,) = scorer.score(["scaled"], [WRONG])
        found = []
        asking = threading.Thread(target=lambda: found.extend(scorer.score(["scaled"], [WRONG + "\n# again\n"])))
        service.kill()
        asking.start()
        service.client = service.start()
        asking.join()
    assert [one.report["stage"] for one in (first, *found)] == ["check", "check"]


def test_where_no_service_answers_the_training_is_told(tmp_path):
    with (
        CompletionScorer(server="unix:/no/socket", settings=FEW, load=posed) as scorer,
        pytest.raises(Exception, match="unix:/no/socket"),
    ):
        scorer.score(["scaled"], [WRONG])
    with CompletionScorer(server="nowhere", load=posed) as scorer, pytest.raises(ExecutorError, match="give unix:PATH"):
        scorer.score(["scaled"], [WRONG])


def test_a_coding_agent_is_served_by_it_too(service, tmp_path):
    mcp = pytest.importorskip("mcp", reason="mcp is not installed; `pip install 'kernelwright[mcp]'` to run this")
    (tmp_path / "scaled.py").write_text(REFERENCE)
    words = ["-m", "kernelwright", "mcp", "--folder", str(tmp_path), "--server", service.client.at]

    async def asked():
        async with mcp.Client(mcp.StdioServerParameters(command=sys.executable, args=words)) as client:
            return await client.call_tool("judge", {"problem": "scaled.py", "source": OWN})

    assert anyio.run(asked).structured_content["outcome"] == "passed"
    assert service.client.metrics()['kernelwright_jobs_total{outcome="passed"}'] >= 1
