"""Who answers a run: presets by name, and one function that makes the provider of a choice."""

import asyncio

import pytest

from kernelwright.agent import providers as registry
from kernelwright.agent.config import (
    FilesOptions,
    LocalOptions,
    ProviderOptions,
    RecordedOptions,
    ServerOptions,
    read_provider,
)
from kernelwright.agent.providers import (
    CachedProvider,
    ProviderError,
    check_provider,
    load_presets,
    provider_for,
    providing,
)
from kernelwright.agent.providers.batch import BatchProvider
from kernelwright.agent.providers.files import FilesProvider
from kernelwright.agent.providers.recorded import RecordedProvider
from kernelwright.agent.providers.server import OpenAIProvider
from kernelwright.agent.providers.simulated import SimulatedProvider

ECHO = """
class Echo:
    name, place, closed = "echo", "here", False

    async def complete(self, request, ask, prompt):
        raise AssertionError("nobody asks")

    def close(self):
        self.closed = True


def provider(options, run):
    return Echo()
"""
NEAR = ServerOptions(base_url="http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (RecordedOptions(), RecordedProvider),
        (ProviderOptions(), RecordedProvider),
        (NEAR, OpenAIProvider),
        (FilesOptions(), FilesProvider),
        (ProviderOptions(kind="batch"), BatchProvider),
        (ProviderOptions(kind="simulated"), SimulatedProvider),
        (NEAR.model_copy(update={"cache": "cache"}), CachedProvider),
    ],
    ids=["recorded", "the default", "server", "files", "batch", "simulated", "cached"],
)
def test_each_choice_has_its_provider(log, options, kind):
    assert type(provider_for(options, log)) is kind


def test_each_file_of_the_folder_is_a_provider_by_its_own_name_and_another_name_is_told(log):
    assert list(registry.providers()) == sorted(("batch", "files", "local", "recorded", "server", "simulated"))
    with pytest.raises(ProviderError, match=r"'ecko'.* batch, files, "):
        provider_for(ProviderOptions(kind="ecko"), log)


def test_a_file_that_is_put_into_the_folder_is_all_that_a_new_provider_takes(log, tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setattr(registry, "__path__", [*registry.__path__, str(tmp_path)])
    assert provider_for(ProviderOptions(kind="echo"), log).name == "echo"
    check_provider(ProviderOptions(kind="echo"))


def test_a_provider_may_lie_in_a_file_of_the_users_own(log, tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)
    options = ProviderOptions(kind=f"{tmp_path / 'echo.py'}:provider", cache=str(tmp_path / "cache"))
    provider = provider_for(options, log)
    assert (provider.name, provider.place) == ("echo", "here")
    check_provider(options)


def test_a_provider_may_come_in_an_installed_package(log, tmp_path, monkeypatch):
    package = tmp_path / "other-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{registry.GROUP}]\necho = other_echo:provider\nfiles = os:getcwd\n")
    (tmp_path / "other_echo.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    assert provider_for(ProviderOptions(kind="echo"), log).name == "echo"
    assert type(provider_for(ProviderOptions(kind="files"), log)) is FilesProvider


def test_what_a_provider_started_ends_with_the_run(log, tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)

    async def within(kind):
        async with providing(ProviderOptions(kind=kind), log) as provider:
            assert not getattr(provider, "closed", False)
            return provider

    assert asyncio.run(within(f"{tmp_path / 'echo.py'}:provider")).closed
    assert asyncio.run(within("simulated")).name == "simulated", "it has started nothing"


def test_tasks_lie_in_the_run_unless_told_otherwise(log, tmp_path):
    assert provider_for(ProviderOptions(kind="files"), log).folder == log.folder / "tasks"
    assert provider_for(FilesOptions(folder=str(tmp_path)), log).folder == tmp_path


def test_the_same_question_in_two_forms_has_two_places_in_the_cache(log):
    forms = [NEAR.model_copy(update={"api": api}) for api in ("chat", "responses")]
    options = [form.model_copy(update={"cache": "cache"}) for form in forms]
    assert len({provider_for(one, log).place for one in options}) == 2


def test_a_missing_key_is_told_before_a_run_starts(monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(ProviderError, match="DEEPSEEK_API_KEY"):
        check_provider(load_presets()["deepseek"].options)


def test_a_missing_model_file_is_told_before_a_run_starts(tmp_path):
    pytest.importorskip("xllamacpp")
    with pytest.raises(ProviderError, match="there is no model file"):
        check_provider(LocalOptions(model_file=str(tmp_path / "absent.gguf")))


@pytest.mark.parametrize("name", load_presets())
def test_each_preset_that_ships_can_be_asked_once_its_key_is_there(name):
    settings = load_presets()[name].options
    provider = OpenAIProvider(settings, {settings.api_key_env: "a-key-for-the-test"})
    assert provider.base_url == settings.base_url
    assert settings.base_url.startswith("http://localhost:" if not settings.api_key_env else "https://")


def test_a_server_without_a_key_is_not_sent_another_ones(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-very-secret-key")
    assert OpenAIProvider(load_presets()["vllm"].options)._key == "none"


def test_a_users_own_table_goes_before_the_one_that_ships(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[vllm]\nbase_url = "http://gpu-box:8000/v1"\n[mine]\nbase_url = "http://mine/v1"\nkey = "MINE"\n')
    found = load_presets(path)
    assert (found["vllm"].base_url, found["mine"].key) == ("http://gpu-box:8000/v1", "MINE")
    assert "ollama" in found


@pytest.mark.parametrize(
    ("text", "words"), [("[mine]\nurl = 3\n", "mine.base_url"), ("[mine", "valid TOML"), (None, "check the path")]
)
def test_a_table_that_can_not_be_used_is_told(tmp_path, text, words):
    path = tmp_path / "own.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProviderError, match=words):
        load_presets(path)


SERVER = {"base_url": "http://x/v1", "api": "responses", "needs_key": False}
OLDER = {"server": SERVER, "folder": "f", "model_file": "m"}


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("server", ServerOptions(base_url="http://x/v1", api="responses", cache="c")),
        ("local", LocalOptions(model_file="m", api="responses", cache="c")),
        ("files", FilesOptions(folder="f", cache="c")),
        ("recorded", RecordedOptions(folder="f", cache="c")),
        ("mine.py:provider", ProviderOptions(kind="mine.py:provider", cache="c")),
    ],
)
def test_options_of_older_runs_are_read_by_their_kind(kind, read):
    assert read_provider(OLDER | {"kind": kind, "cache": "c"}) == read
    assert read_provider(read.model_dump()) == read
