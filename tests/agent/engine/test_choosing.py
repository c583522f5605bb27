"""Who answers a run: presets by name, and one function that makes the provider of a choice."""

import asyncio

import pytest

from kernelwright.agent.engine.who_answers import ProviderOptions, check_provider, provider_for, providing
from kernelwright.agent.providers.answers import CachedProvider
from kernelwright.agent.providers.files import FilesProvider
from kernelwright.agent.providers.protocol import ProviderError
from kernelwright.agent.providers.recorded import RecordedProvider
from kernelwright.agent.providers.servers.batchfile import BatchProvider
from kernelwright.agent.providers.servers.client import OpenAIProvider, OpenAISettings
from kernelwright.agent.providers.servers.presets import load_presets
from kernelwright.agent.providers.simulated.parts import SimulatedProvider
from tests.agent.search_parts import new_log

NEAR = OpenAISettings(base_url="http://127.0.0.1:9/v1")


@pytest.fixture
def log(tmp_path):
    with new_log(tmp_path / "run") as log:
        yield log


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (ProviderOptions(), RecordedProvider),
        (ProviderOptions(kind="server", server=NEAR), OpenAIProvider),
        (ProviderOptions(kind="files"), FilesProvider),
        (ProviderOptions(kind="batch"), BatchProvider),
        (ProviderOptions(kind="simulated"), SimulatedProvider),
        (ProviderOptions(kind="server", server=NEAR, cache="cache"), CachedProvider),
    ],
    ids=["recorded", "server", "files", "batch", "simulated", "cached"],
)
def test_each_choice_has_its_provider(log, options, kind):
    assert type(provider_for(options, log)) is kind


def test_tasks_lie_in_the_run_unless_told_otherwise(log, tmp_path):
    assert provider_for(ProviderOptions(kind="files"), log).folder == log.folder / "tasks"
    assert provider_for(ProviderOptions(kind="files", folder=str(tmp_path)), log).folder == tmp_path


def test_the_same_question_in_two_forms_has_two_places_in_the_cache(log):
    options = [
        ProviderOptions(kind="server", server=NEAR.model_copy(update={"api": api}), cache="cache")
        for api in ("chat", "responses")
    ]
    assert len({provider_for(one, log).place for one in options}) == 2


def test_a_missing_key_is_told_before_a_run_starts(monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(ProviderError, match="no key in the variable DEEPSEEK_API_KEY"):
        check_provider(ProviderOptions(kind="server", server=load_presets()["deepseek"].settings))


def test_a_missing_model_file_is_told_before_a_run_starts(tmp_path):
    pytest.importorskip("xllamacpp")
    with pytest.raises(ProviderError, match="there is no model file"):
        check_provider(ProviderOptions(kind="local", model_file=str(tmp_path / "absent.gguf")))


def test_a_provider_that_started_nothing_needs_no_end(log):
    async def within():
        async with providing(ProviderOptions(kind="simulated"), log) as provider:
            return provider.name

    assert asyncio.run(within()) == "simulated"


@pytest.mark.parametrize("name", load_presets())
def test_each_preset_that_ships_can_be_asked_once_its_key_is_there(name):
    settings = load_presets()[name].settings
    provider = OpenAIProvider(settings, {settings.api_key_env: "a-key-for-the-test"})
    assert provider.base_url == settings.base_url
    assert settings.base_url.startswith("http://localhost:" if not settings.api_key_env else "https://")


def test_a_server_without_a_key_is_not_sent_another_ones(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-very-secret-key")
    assert OpenAIProvider(load_presets()["vllm"].settings)._key == "none"


def test_a_users_own_table_goes_before_the_one_that_ships(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[vllm]\nbase_url = "http://gpu-box:8000/v1"\n[mine]\nbase_url = "http://mine/v1"\nkey = "MINE"\n')
    found = load_presets(path)
    assert (found["vllm"].base_url, found["mine"].key) == ("http://gpu-box:8000/v1", "MINE")
    assert "ollama" in found


@pytest.mark.parametrize(
    ("text", "words"),
    [("[mine]\nurl = 3\n", "mine.base_url"), ("[mine", "no valid TOML"), (None, "check the path")],
)
def test_a_table_that_can_not_be_used_is_told(tmp_path, text, words):
    path = tmp_path / "own.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProviderError, match=words):
        load_presets(path)
