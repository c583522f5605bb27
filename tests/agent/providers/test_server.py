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
        self.data = (body if is_page else json.dumps(body)).encode()
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


def used(answered):
    usage = answered[0].usage
    cached = (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens)
    return (*cached, usage.output_tokens, usage.reasoning_tokens, usage.cost_usd)


def test_an_ordinary_answer_to_one_user_message_becomes_a_reply():
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    reply, server = asked(Answer(completion(usage=usage), x_request_id="req-7"))
    assert (reply.text, reply.finish_reason, reply.model) == ("Hello.", "stop", "some-model-0125")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 5)
    assert (reply.provider, reply.provider_request_id) == ("openai", "req-7")
    assert server.bodies == [{"model": "some-model", "messages": [{"role": "user", "content": "Write a kernel."}]}]


def test_options_go_out_only_where_they_are_set():
    _, server = asked(Answer(completion()), request=REQUEST.model_copy(update={"temperature": 0.0, "max_tokens": 9}))
    assert (server.bodies[0]["temperature"], server.bodies[0]["max_tokens"]) == (0.0, 9)


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


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_either_name(field):
    reply, _ = asked(Answer(completion(**{field: "Let me think."})))
    assert (reply.text, reply.reasoning) == ("Hello.", "Let me think.")


@pytest.mark.parametrize(
    ("message", "text", "finish_reason"),
    [
        ({"finish_reason": "length"}, "Hello.", "length"),
        ({"content": None, "refusal": "I will not."}, "I will not.", "stop"),
        ({"content": "a\ud800b"}, "a?b", "stop"),
    ],
    ids=["cut off", "a refusal where there is no other text", "half a surrogate pair"],
)
def test_the_text_and_why_it_ended_are_read(message, text, finish_reason):
    reply, _ = asked(Answer(completion(**message)))
    assert (reply.text, reply.finish_reason, len(reply.digest)) == (text, finish_reason, 64)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (DETAILED, (9, 4, 3, 8, 6, None)),
        ({"prompt_tokens": 9, "completion_tokens": 8, "prompt_cache_hit_tokens": 5}, (9, 5, None, 8, None, None)),
        ({"prompt_tokens": 9, "completion_tokens": 8, "cost": 0.25}, (9, None, None, 8, None, 0.25)),
        ({"completion_tokens": 8, "completion_tokens_details": None}, (None, None, None, 8, None, None)),
        ({"prompt_tokens": "many", "completion_tokens": -1}, (None,) * 6),
        (None, (None,) * 6),
    ],
    ids=["openai", "deepseek", "openrouter", "llama.cpp", "nonsense", "unknown"],
)
def test_usage_is_read_as_each_server_writes_it(usage, expected):
    assert used(asked(Answer(completion(usage=usage)))) == expected


@pytest.mark.parametrize(
    "answer",
    [
        Answer("<html>Welcome</html>"),
        Answer({"status": "ok"}),
        Answer(["no", "object"]),
        Answer({"choices": []}),
        Answer({"choices": [{"message": {"content": [1]}}]}),
        Answer("not JSON at all", Content_Type="application/json"),
        Answer("", Content_Type="application/json"),
    ],
    ids=["page", "other object", "list", "no choice", "content that is no text", "broken JSON", "nothing"],
)
def test_what_is_no_chat_completion_is_told_with_the_address(answer):
    error = refused(answer)
    assert "http://127.0.0.1:" in str(error) and "chat completion" in str(error)
    assert "--base-url" in str(error) and "OPENAI_BASE_URL" in str(error)


def test_a_refused_key_is_told_with_its_variable():
    error = refused(Answer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, status=401))
    assert "OPENAI_API_KEY (401)" in str(error)
    assert (KEY in str(error), error.retryable) == (False, False)


@pytest.mark.parametrize(
    ("status", "words", "said"),
    [
        (404, "The model does not exist", "no model 'some-model'.*The model does not exist"),
        (400, "context too long", "400: context too long"),
    ],
)
def test_what_is_refused_is_told_in_the_servers_words(status, words, said):
    assert re.search(said, str(refused(Answer({"error": {"message": words}}, status=status))))


def test_a_page_in_place_of_a_404_is_not_shown():
    assert "<html>" not in str(refused(Answer("<html>Not here</html>", status=404)))


def test_too_many_requests_are_tried_again_after_the_time_that_the_server_asks_for():
    limited = Answer({"error": {"message": "slow down"}}, status=429, Retry_After="0.05")
    reply, server = asked(limited, Answer(completion()), retries=2)
    assert (reply.text, len(server.bodies)) == ("Hello.", 2)


def test_too_many_requests_for_ever_and_a_server_in_trouble_are_passing_failures_and_a_used_up_quota_is_none():
    error = refused(Answer({"error": {"message": "slow down"}}, status=429, Retry_After="0.01"), retries=1)
    assert "(429: slow down)" in str(error)
    assert error.retryable
    assert refused(Answer({"error": {"message": "overloaded"}}, status=503)).retryable
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    error = refused(Answer(body, status=429))
    assert "quota is used up" in str(error)
    assert not error.retryable


def test_an_address_where_nothing_listens_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ProviderError, match=f"{url} cannot be reached.* --base-url"):
            asyncio.run(provider_at(url).complete(REQUEST, ASK, PROMPT))


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


def responded(*answers, **options):
    return asked(*answers, api="responses", **options)


def unanswered(*answers, **options):
    return refused(*answers, api="responses", **options)


def message(text="Hello.", kind="output_text"):
    words = "refusal" if kind == "refusal" else "text"
    content = [{"type": kind, words: text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}


def response(*output, status="completed", **fields):
    head = {"id": "resp-1", "object": "response", "created_at": 1, "model": "some-model-0125", "status": status}
    return head | {"output": list(output or [message()])} | fields


def test_an_ordinary_answer_to_an_input_and_a_limit_becomes_a_reply():
    limited = REQUEST.model_copy(update={"max_tokens": 9})
    reply, server = responded(Answer(response(), x_request_id="req-7"), request=limited)
    assert (reply.text, reply.finish_reason, reply.model) == ("Hello.", "stop", "some-model-0125")
    assert (reply.provider, reply.provider_request_id) == ("responses", "req-7")
    assert server.bodies == [{"model": "some-model", "input": "Write a kernel.", "max_output_tokens": 9}]


@pytest.mark.parametrize(
    ("messages", "text"),
    [((message("One, "), message("two.")), "One, two."), ((message("I will not.", "refusal"),), "I will not.")],
    ids=["the parts of several", "a refusal where there is no other"],
)
def test_the_texts_of_messages_are_one(messages, text):
    assert responded(Answer(response(*messages)))[0].text == text


@pytest.mark.parametrize("field", ["summary", "content"])
def test_reasoning_is_read_from_its_summary_and_from_its_words(field):
    thought = {"type": "reasoning", "id": "r", "summary": [], field: [{"type": "any_text", "text": "Let me think."}]}
    reply, _ = responded(Answer(response(thought, message())))
    assert (reply.text, reply.reasoning) == ("Hello.", "Let me think.")


@pytest.mark.parametrize(("reason", "said"), [("max_output_tokens", "length"), ("content_filter", "content_filter")])
def test_an_incomplete_answer_says_why(reason, said):
    reply, _ = responded(Answer(response(status="incomplete", incomplete_details={"reason": reason})))
    assert reply.finish_reason == said


def test_an_answer_that_is_as_long_as_its_limit_was_cut_off_whatever_the_server_says():
    usage = {"input_tokens": 1, "output_tokens": 9}
    reply, _ = responded(Answer(response(usage=usage)), request=REQUEST.model_copy(update={"max_tokens": 9}))
    assert reply.finish_reason == "length"


def test_an_answer_that_failed_is_a_passing_failure_in_the_servers_words():
    error = unanswered(Answer(response(status="failed", error={"code": "server_error", "message": "out of memory"})))
    assert "(out of memory)" in str(error)
    assert error.retryable


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {key.replace("prompt", "input").replace("completion", "output"): DETAILED[key] for key in DETAILED},
            (9, 4, 3, 8, 6),
        ),
        ({"input_tokens": 9, "output_tokens": 8, "output_tokens_details": None}, (9, None, None, 8, None)),
        ({"input_tokens": "many"}, (None, None, None, None, None)),
        (None, (None, None, None, None, None)),
    ],
    ids=["openai", "llama.cpp", "nonsense", "none"],
)
def test_usage_of_a_response_is_read_and_what_is_unknown_is_none(usage, expected):
    assert used(responded(Answer(response(usage=usage)))) == (*expected, None)


def test_a_cost_that_a_server_states_is_read_from_a_response_too():
    usage = {"input_tokens": 9, "output_tokens": 8, "cost": 0.25}
    assert responded(Answer(response(usage=usage)))[0].usage.cost_usd == 0.25


@pytest.mark.parametrize(
    "answer",
    [Answer("<html>Welcome</html>"), Answer({"status": "ok"}), Answer(["no", "object"]), Answer({"output": "words"})],
    ids=["page", "other object", "list", "output that is no list"],
)
def test_what_is_no_response_is_told_with_the_address(answer):
    error = unanswered(answer)
    assert "http://127.0.0.1:" in str(error) and "with a response" in str(error)
    assert "--base-url" in str(error) and "OPENAI_BASE_URL" in str(error)


def test_a_server_without_responses_is_told():
    error = unanswered(Answer({"error": {"message": "not here"}}, status=404))
    assert "(404: not here)" in str(error) and "responses" in str(error)


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
