"""A proxy that refuses everything, as in a closed network: it is named, not the server or the key."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kernelwright.agent.log.records import Ask, Request
from kernelwright.agent.providers import OpenAISettings, ProviderError, local
from kernelwright.agent.providers.server import OpenAIProvider, proxy_for
from kernelwright.prompts import Prompt
from kernelwright.sandbox.machine.cache import VARIABLE

ASK = Ask(attempt=1, problem="p", role="propose", target="cpp", parent=None, idea="", directive="", model="some-model")
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Refusing(BaseHTTPRequestHandler):
    def refuse(self):
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_CONNECT = do_GET = do_POST = refuse

    def log_message(self, *_):
        pass


@pytest.fixture
def no_proxy(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def proxy(no_proxy, monkeypatch):
    """The refusing proxy's host and port; the environment names it, with a password."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"127.0.0.1:{server.server_port}"
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://me:hush@{place}")
    yield place
    server.shutdown()
    server.server_close()


def refused(address):
    provider = OpenAIProvider(OpenAISettings(base_url=address, max_retries=0), {"OPENAI_API_KEY": "sk-something"})
    prompt = Prompt(role="propose", target="cpp", sections=())
    with pytest.raises(ProviderError) as caught:
        asyncio.run(provider.complete(Request(model="some-model", prompt="Hello."), ASK, prompt))
    return str(caught.value)


def test_a_proxy_that_lets_no_tunnel_through_is_named(proxy):
    said = refused("https://models.invalid/v1")
    assert "https://models.invalid" in said and f"the proxy {proxy} (403 " in said
    assert "NO_PROXY" in said


def test_a_proxy_that_answers_in_the_servers_place_is_named_beside_the_key(proxy):
    said = refused("http://models.invalid/v1")
    assert f"the proxy {proxy}" in said and "(403)" in said and "OPENAI_API_KEY" in said


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_password_of_a_proxy_is_not_told(proxy, scheme):
    assert "hush" not in refused(f"{scheme}://models.invalid/v1")


def test_a_server_that_no_proxy_is_for_has_none(proxy, monkeypatch):
    monkeypatch.setenv("no_proxy", "models.invalid")
    assert proxy_for("https://models.invalid/v1") == ""


def test_a_proxy_may_be_named_without_a_scheme_and_for_all(no_proxy, monkeypatch):
    monkeypatch.setenv("all_proxy", "proxy.invalid:3128")
    assert proxy_for("https://models.invalid/v1") == "proxy.invalid:3128"


@pytest.mark.slow
def test_the_small_model_that_a_proxy_holds_back_is_told_with_the_proxys_answer(proxy, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ProviderError, match=r"403 Forbidden.* proxy"):
        local.fetch()
