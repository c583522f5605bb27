import threading
import time

import pytest

from kernelwright.integrations.scoring import CompletionScorer
from tests.support.replies import OWN, SETTINGS, WRONG, posed, reply

pytest.importorskip(
    "openenv", reason="openenv-core is not installed; `pip install 'kernelwright[openenv]'` to run this"
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    import uvicorn

    from kernelwright.integrations.openenv_environment import app

    with CompletionScorer(settings=SETTINGS, load=posed) as scorer:
        config = uvicorn.Config(app(["scaled", "any"], "cpp", steps=3, scorer=scorer), port=0, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def environment(address):
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(base_url=address, message_timeout_s=300).sync() as client:
        yield client


def step(environment, completion):
    return environment.step({"completion": completion})


def test_a_reset_poses_the_problem_with_its_prompt(environment):
    found = environment.reset(problem="scaled")
    assert "class ModelNew" in found.observation["text"]
    assert (found.reward, found.done) == (None, False)


def test_an_episode_earns_what_its_best_kernel_is_worth_and_the_same_again_earns_nothing(environment):
    environment.reset(problem="scaled", episode_id="mine")
    wrong, right, again = (step(environment, reply(source)) for source in (WRONG, OWN, OWN))
    assert (wrong.reward, wrong.observation["worth"]) == (0, 0)
    assert "failed at check" in wrong.observation["text"]
    assert right.reward == right.observation["worth"] > 0
    assert again.reward == max(0, again.observation["worth"] - right.reward)
    assert again.done
    state = environment.state()
    assert (state["episode_id"], state["step_count"], state["steps_left"]) == ("mine", 3, 0)
    assert state["best_source"] == OWN
    assert state["best"] == pytest.approx(right.reward + again.reward)


def test_what_ended_judges_nothing_more(environment):
    environment.reset(problem="scaled")
    for _ in range(3):
        last = step(environment, "no code")
    assert last.done
    with pytest.raises(RuntimeError, match="reset"):
        step(environment, OWN)


def test_a_seed_draws_the_same_problem_again(environment):
    drawn = []
    for _ in range(2):
        environment.reset(seed=7)
        drawn.append(environment.state()["problem"])
    assert drawn[0] == drawn[1]


def test_a_problem_that_is_not_offered_is_refused(environment):
    with pytest.raises(RuntimeError, match=r"'/etc/passwd'.* scaled, any"):
        environment.reset(problem="/etc/passwd")


def test_two_sessions_do_not_share_an_episode(address, environment):
    from openenv.core.generic_client import GenericEnvClient

    environment.reset(problem="scaled")
    step(environment, "no code")
    with GenericEnvClient(base_url=address).sync() as other:
        other.reset(problem="any")
        assert other.state()["step_count"] == 0
    assert environment.state()["step_count"] == 1
