"""Servers of models: both wire formats, their failures, keys, and proxies in between; over real HTTP."""

import asyncio
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kernelwright.agent.config import ServerOptions
from kernelwright.agent.log.records import Ask, Request
from kernelwright.agent.providers import ProviderError, local
from kernelwright.agent.providers.server import OpenAIProvider, proxy_for
from kernelwright.prompts import Prompt
from kernelwright.sandbox.storage import VARIABLE
from tests.support.search import CONFIG, PROBLEM, new_log, reply_with, searched

KEY = "sk-a-very-secret-key"
DETAILED = {
    "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
    "completion_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 6},
}  # fmt: skip
ASK = Ask(attempt=1, problem="p", role="propose", target="cpp", parent=None, idea="", directive="", model="some-model")
PROMPT = Prompt(role="propose", target="cpp", sections=())
REQUEST = Request(model="some-model", prompt="Write a kernel.")


def completion(content="Hello.", finish_reason="stop", usage=None, **message):
    said = {"role": "assistant", "content": content} | message
    choices = [{"index": 0, "finish_reason": finish_reason, "message": said}]
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "some-model-0125"}
    return head | {"choices": choices, "usage": usage}


class Answer:
    """One HTTP answer: a status, a body (an object is sent as JSON) and headers."""

    def __init__(self, body, status=200, **headers):
        is_page = isinstance(body, str)
        self.status = status
        self.data = (body if is_page else json.dumps(body)).encode(errors="surrogateescape")
        kind = "text/html" if is_page else "application/json"
        self.headers = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}


class Server:
    """Gives its answers in turn, the last one for ever, and keeps what it was sent."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.bodies = []
        self.headers = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                server.headers.append(self.headers)
                server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                self.send_response(answer.status)
                for name, value in (answer.headers | {"Content-Length": str(len(answer.data))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.data)

            def log_message(self, format, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def provider_at(url, key=KEY, retries=0, **settings):
    environment = {} if key is None else {"OPENAI_API_KEY": key}
    return OpenAIProvider(ServerOptions(base_url=url, max_retries=retries, **settings), environment)


def asked(*answers, request=REQUEST, **options):
    """The reply of a server with these answers, and the server."""
    with Server(*answers) as server:
        reply = asyncio.run(provider_at(server.url, **options).complete(request, ASK, PROMPT))
    return reply, server


def refused(*answers, **options):
    with pytest.raises(ProviderError) as caught:
        asked(*answers, **options)
    return caught.value


def message(text="Hello.", kind="output_text"):
    words = "refusal" if kind == "refusal" else "text"
    content = [{"type": kind, words: text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}


def response(*output, status="completed", **fields):
    head = {"id": "resp-1", "object": "response", "created_at": 1, "model": "some-model-0125", "status": status}
    return head | {"output": list(output or [message()])} | fields


def thought(field):
    return {"type": "reasoning", "id": "r", "summary": [], field: [{"type": "any_text", "text": "Let me think."}]}


CHAT = {"model": "some-model", "messages": [{"role": "user", "content": "Write a kernel."}]}
RESPONSES = {"model": "some-model", "input": "Write a kernel."}


@pytest.mark.parametrize(
    ("api", "body", "provider", "options", "sent"),
    [
        ("chat", completion(), "openai", {}, CHAT),
        (
            "chat",
            completion(),
            "openai",
            {"temperature": 0.0, "max_tokens": 9},
            CHAT | {"temperature": 0.0, "max_tokens": 9},
        ),
        ("responses", response(), "responses", {"max_tokens": 9}, RESPONSES | {"max_output_tokens": 9}),
    ],
    ids=["chat", "chat with options", "responses"],
)
def test_an_ordinary_answer_becomes_a_reply_and_only_set_options_are_sent(api, body, provider, options, sent):
    reply, server = asked(Answer(body, x_request_id="req-7"), request=REQUEST.model_copy(update=options), api=api)
    assert (reply.text, reply.finish_reason, reply.model) == ("Hello.", "stop", "some-model-0125")
    assert (reply.provider, reply.provider_request_id) == (provider, "req-7")
    assert server.bodies == [sent]


INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
READ = {
    "reasoning": ("chat", completion(reasoning="Let me think."), {"reasoning": "Let me think."}),
    "reasoning_content": ("chat", completion(reasoning_content="Let me think."), {"reasoning": "Let me think."}),
    "cut off": ("chat", completion(finish_reason="length"), {"finish_reason": "length"}),
    "a refusal alone": ("chat", completion(content=None, refusal="I will not."), {"text": "I will not."}),
    "half a surrogate pair": ("chat", completion(content="a\ud800b"), {"text": "a?b"}),
    "parts": ("responses", response(message("One, "), message("two.")), {"text": "One, two."}),
    "a refused part": ("responses", response(message("I will not.", "refusal")), {"text": "I will not."}),
    "a summary": ("responses", response(thought("summary"), message()), {"reasoning": "Let me think."}),
    "a thought": ("responses", response(thought("content"), message()), {"reasoning": "Let me think."}),
    "too long": ("responses", response(**INCOMPLETE), {"finish_reason": "length"}),
    "filtered": ("responses", response(**FILTERED), {"finish_reason": "content_filter"}),
    "as long as the limit": (
        "responses",
        response(usage={"input_tokens": 1, "output_tokens": 9}),
        {"finish_reason": "length"},
    ),
}


@pytest.mark.parametrize("case", READ)
def test_text_reasoning_and_the_reason_of_the_end_are_read(case):
    api, body, expected = READ[case]
    reply, _ = asked(Answer(body), request=REQUEST.model_copy(update={"max_tokens": 9}), api=api)
    assert {name: getattr(reply, name) for name in expected} == expected and len(reply.digest) == 64
    assert reply.text == expected.get("text", "Hello.")


@pytest.mark.parametrize(
    ("chosen", "environment", "sent"),
    [
        ({}, {"OPENAI_API_KEY": KEY}, KEY),
        ({}, {}, "none"),
        ({"api_key_env": "OTHER_KEY"}, {"OTHER_KEY": "other"}, "other"),
    ],
    ids=["in its variable", "none, which another server than OpenAI's needs", "in another variable"],
)
def test_the_key_goes_out_in_its_header(chosen, environment, sent):
    with Server(Answer(completion())) as server:
        provider = OpenAIProvider(ServerOptions(base_url=server.url, **chosen), environment)
        asyncio.run(provider.complete(REQUEST, ASK, PROMPT))
    assert server.headers[0]["Authorization"] == f"Bearer {sent}"


OF_RESPONSES = {key.replace("prompt", "input").replace("completion", "output"): DETAILED[key] for key in DETAILED}


@pytest.mark.parametrize(
    ("api", "usage", "expected"),
    [
        ("chat", DETAILED, (9, 4, 3, 8, 6, None)),
        (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 8, "prompt_cache_hit_tokens": 5},
            (9, 5, None, 8, None, None),
        ),
        ("chat", {"prompt_tokens": 9, "completion_tokens": 8, "cost": 0.25}, (9, None, None, 8, None, 0.25)),
        ("chat", {"completion_tokens": 8, "completion_tokens_details": None}, (None, None, None, 8, None, None)),
        ("chat", {"prompt_tokens": "many", "completion_tokens": -1}, (None,) * 6),
        ("chat", None, (None,) * 6),
        ("responses", OF_RESPONSES, (9, 4, 3, 8, 6, None)),
        ("responses", {"input_tokens": 9, "output_tokens": 8, "cost": 0.25}, (9, None, None, 8, None, 0.25)),
        ("responses", {"input_tokens": 9, "output_tokens_details": None}, (9, *[None] * 5)),
        ("responses", {"input_tokens": "many"}, (None,) * 6),
        ("responses", None, (None,) * 6),
    ],
)
def test_usage_is_read_as_each_server_writes_it_and_what_is_unknown_is_none(api, usage, expected):
    body = completion(usage=usage) if api == "chat" else response(usage=usage)
    found = asked(Answer(body), api=api)[0].usage
    cached = (found.input_tokens, found.cached_tokens, found.cache_write_tokens)
    assert (*cached, found.output_tokens, found.reasoning_tokens, found.cost_usd) == expected


NO_ANSWER = {
    "page": "<html>Welcome</html>",
    "other object": {"status": "ok"},
    "list": ["no", "object"],
    "no choice": {"choices": []},
    "content that is not text": {"choices": [{"message": {"content": [1]}}]},
    "output that is not a list": {"output": "words"},
}
NO_JSON = {text: Answer(text, Content_Type="application/json") for text in ("not JSON", "", '"not UTF-8: \udcff"')}


@pytest.mark.parametrize(("api", "noun"), [("chat", "chat completion"), ("responses", "with a response")])
@pytest.mark.parametrize("answer", (NO_ANSWER | NO_JSON).values(), ids=[*NO_ANSWER, *NO_JSON])
def test_an_answer_of_another_form_is_refused_with_the_address(answer, api, noun):
    error = refused(answer if isinstance(answer, Answer) else Answer(answer), api=api)
    assert all(word in str(error) for word in ("http://127.0.0.1:", noun, "--base-url", "OPENAI_BASE_URL"))


def test_once_it_has_answered_an_answer_of_another_form_is_asked_for_again():
    with Server(Answer(completion("one")), Answer({"status": "ok"})) as server, pytest.raises(ProviderError) as found:
        provider = provider_at(server.url)
        for _ in range(2):
            asyncio.run(provider.complete(REQUEST, ASK, PROMPT))
    assert found.value.retryable and len(server.bodies) == 2


def failure(words, **fields):
    return {"error": {"message": words} | fields}


@pytest.mark.parametrize(
    ("api", "body", "status", "said", "retryable"),
    [
        ("chat", failure(f"Incorrect API key provided: {KEY}"), 401, r"OPENAI_API_KEY \(401\)", False),
        ("chat", failure("The model does not exist"), 404, "no model 'some-model'.*does not exist", False),
        ("chat", failure("context too long"), 400, "400: context too long", False),
        ("chat", failure("slow down"), 429, r"\(429: slow down\)", True),
        ("chat", failure("overloaded"), 503, "503", True),
        ("chat", failure("You exceeded it", code="insufficient_quota"), 429, "quota is used up", False),
        ("chat", "<html>Not here</html>", 404, "404", False),
        ("responses", failure("not here"), 404, r"responses.*\(404: not here\)", False),
        ("responses", response(status="failed", error={"code": "e", "message": "no memory"}), 200, "no memory", True),
    ],
)
def test_a_refusal_is_reported_in_the_servers_words_without_the_key(api, body, status, said, retryable):
    error = refused(Answer(body, status=status, Retry_After="0.01"), api=api)
    assert re.search(said, str(error)) and error.retryable == retryable
    assert KEY not in str(error) and "<html>" not in str(error)


def test_too_many_requests_are_tried_again_after_the_time_that_the_server_asks_for():
    limited = Answer(failure("slow down"), status=429, Retry_After="0.05")
    reply, server = asked(limited, Answer(completion()), retries=2)
    assert (reply.text, len(server.bodies)) == ("Hello.", 2)


def test_an_address_where_nothing_listens_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ProviderError, match=f"{url} cannot be reached.* --base-url"):
            asyncio.run(asyncio.wait_for(provider_at(url, retries=9).complete(REQUEST, ASK, PROMPT), 5))


@pytest.mark.parametrize(("setting", "words"), [("timeout_s", "was silent for"), ("deadline_s", "did not finish")])
def test_a_server_that_never_answers_is_a_passing_failure(setting, words):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with pytest.raises(ProviderError, match=words) as caught:
            asyncio.run(provider_at(url, **{setting: 0.2}).complete(REQUEST, ASK, PROMPT))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        (None, None, r"OPENAI_API_KEY.* --base-url"),
        ("localhost:8000/v1", KEY, "is no address"),
        ("http://", KEY, "is no address"),
        ("ftp://host/v1", KEY, "is no address"),
        ("http://[::1/v1", KEY, "is no address"),
        ("https://me:hunter22@host/v1", KEY, "holds a password"),
        ("http://localhost/v1", "sk-\u201cquoted\u201d", "copy it again"),
    ],
)
def test_an_address_or_a_key_that_can_not_be_used_is_told_at_once_and_no_password_with_it(url, key, said):
    with pytest.raises(ProviderError, match=said) as caught:
        provider_at(url, key=key)
    assert "hunter22" not in str(caught.value)


def test_one_provider_serves_several_event_loops():
    with Server(Answer(completion())) as server:
        provider = provider_at(server.url)
        texts = [asyncio.run(provider.complete(REQUEST, ASK, PROMPT)).text for _ in range(2)]
    assert texts == ["Hello.", "Hello."]


def test_no_file_of_a_run_holds_the_key_even_where_the_server_sends_it_back(tmp_path):
    leaking = f"Your key is {KEY}.\n" + reply_with("1.5")
    answers = [Answer(completion(content=leaking, reasoning=KEY, usage={"note": KEY}), x_request_id=KEY)]
    answers.append(Answer({"error": {"message": f"bad request of {KEY}"}}, status=400))
    with Server(*answers) as server, new_log(tmp_path / "run") as log, pytest.raises(ProviderError):
        searched(log, provider=provider_at(server.url), config=CONFIG)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_whole_search_runs_over_http(tmp_path):
    with Server(Answer(completion(content=reply_with("1.5")))) as server, new_log(tmp_path / "run") as log:
        view = searched(log, provider=provider_at(server.url), config=CONFIG.model_copy(update={"attempts": 2}))
    assert view.best.number == 1
    assert PROBLEM.source in server.bodies[0]["messages"][0]["content"]


class Refusing(BaseHTTPRequestHandler):
    def refuse(self):
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_CONNECT = do_GET = do_POST = refuse

    def log_message(self, *_):
        pass


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


def refused_at(address):
    provider = OpenAIProvider(ServerOptions(base_url=address, max_retries=0), {"OPENAI_API_KEY": "sk-something"})
    with pytest.raises(ProviderError) as caught:
        asyncio.run(provider.complete(REQUEST, ASK, PROMPT))
    return str(caught.value)


def test_a_proxy_that_lets_no_tunnel_through_is_named(proxy):
    said = refused_at("https://models.invalid/v1")
    assert "https://models.invalid" in said and f"the proxy {proxy} (403 " in said
    assert "NO_PROXY" in said


def test_a_proxy_that_answers_in_the_servers_place_is_named_beside_the_key(proxy):
    said = refused_at("http://models.invalid/v1")
    assert f"the proxy {proxy}" in said and "(403)" in said and "OPENAI_API_KEY" in said


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_password_of_a_proxy_is_not_told(proxy, scheme):
    assert "hush" not in refused_at(f"{scheme}://models.invalid/v1")


def test_a_proxy_may_be_named_without_a_scheme_and_for_all_but_some(monkeypatch):
    monkeypatch.setenv("all_proxy", "proxy.invalid:3128")
    assert proxy_for("https://models.invalid/v1") == "proxy.invalid:3128"
    monkeypatch.setenv("no_proxy", "models.invalid")
    assert proxy_for("https://models.invalid/v1") == ""


@pytest.mark.slow
def test_the_small_model_that_a_proxy_holds_back_is_told_with_the_proxys_answer(proxy, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ProviderError, match=r"403 Forbidden.* proxy"):
        local.fetch()
