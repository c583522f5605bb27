"""`server`: any server that speaks chat completions or responses, through the official client of OpenAI.

On the command line it goes by its preset's name. The key comes from an environment variable, goes into the request's
header and nowhere else: no record, message or error of ours holds it, not even where the server sends it back.
"""

import asyncio
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from kernelwright.agent.config import Api, ServerOptions
from kernelwright.agent.log.records import Ask, Reply, Request, Usage
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.providers import Provider, ProviderError
from kernelwright.prompts import Prompt

if TYPE_CHECKING:
    import openai


def _count(value: object) -> int | None:
    """Read a number of tokens; None where the server left it out or sent something else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _words(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _reply(answer: dict[str, Any], asked_model: str, **fields: Any) -> Reply:
    model, id = _words(answer.get("model")) or asked_model, _words(answer.get("id"))
    return Reply(model=model, provider_request_id=id, latency_s=None, **fields)


def read_usage(raw: object, sent: str, received: str) -> Usage:
    """Read a usage object whose counts have these names; missing or malformed ones are None.

    `cost` is OpenRouter's; `prompt_cache_hit_tokens` is DeepSeek's name for cached tokens.
    """
    if not isinstance(raw, dict):
        return Usage()
    of_sent, of_received = _table(raw.get(f"{sent}_details")), _table(raw.get(f"{received}_details"))
    cached, cost = _count(of_sent.get("cached_tokens")), raw.get("cost")
    return Usage(
        input_tokens=_count(raw.get(sent)),
        cached_tokens=_count(raw.get("prompt_cache_hit_tokens")) if cached is None else cached,
        cache_write_tokens=_count(of_sent.get("cache_write_tokens")),
        output_tokens=_count(raw.get(received)),
        reasoning_tokens=_count(of_received.get("reasoning_tokens")),
        cost_usd=float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
        raw=json.dumps(raw, default=str),
    )


class Chat:
    """The wire format of `/chat/completions`."""

    noun = "chat completion"

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
        """Write the request as arguments of the client; `is_own` where OpenAI itself is asked."""
        # OpenAI's newer models refuse max_tokens; most other servers know nothing else.
        limit = "max_completion_tokens" if is_own else "max_tokens"
        options = _given(temperature=request.temperature, **{limit: request.max_tokens})
        return {"model": request.model, "messages": [{"role": "user", "content": request.prompt}], **options}

    async def send(self, client: "openai.AsyncOpenAI", arguments: dict[str, Any]) -> Any:
        return await client.chat.completions.create(**arguments)

    def read(self, answer: dict[str, Any], asked_model: str, limit: int | None = None) -> Reply | str | None:
        """Read the reply in a server's answer, or why it failed; None where the answer is of another form.

        `limit` is that of the output tokens. Reasoning is in `reasoning_content` (DeepSeek, older vLLM) or `reasoning`
        (OpenRouter, newer vLLM).
        """
        choice = next(iter(_tables(answer.get("choices"))), {})
        message = choice.get("message")
        if not isinstance(message, dict) or not isinstance(content := message.get("content"), str | None):
            return None
        return _reply(
            answer,
            asked_model,
            text=content or _words(message.get("refusal")) or "",
            reasoning=_words(message.get("reasoning")) or _words(message.get("reasoning_content")) or "",
            finish_reason=_words(choice.get("finish_reason")),
            usage=read_usage(answer.get("usage"), "prompt_tokens", "completion_tokens"),
            provider="openai",
        )


FINISH = {"max_output_tokens": "length"}
"""The reasons of incomplete responses in the words of chat completions, where they differ."""


class Responses:
    """The wire format of `/responses`, which suits OpenAI's reasoning models. Nothing is kept on the server."""

    noun = "response"

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
        options = _given(temperature=request.temperature, max_output_tokens=request.max_tokens)
        kept = {"store": False} if is_own else {}
        return {"model": request.model, "input": request.prompt, **options, **kept}

    async def send(self, client: "openai.AsyncOpenAI", arguments: dict[str, Any]) -> Any:
        return await client.responses.create(**arguments)

    def read(self, answer: dict[str, Any], asked_model: str, limit: int | None = None) -> Reply | str | None:
        """See `Chat.read`. An output item is a message or reasoning; tools are never offered."""
        if not isinstance(answer.get("output"), list):
            return None
        status, items = _words(answer.get("status")), _tables(answer["output"])
        if status in ("failed", "cancelled"):
            return _words(_table(answer.get("error")).get("message")) or status
        messages = [part for item in items if item.get("type") == "message" for part in _tables(item.get("content"))]
        reasoned = [item for item in items if item.get("type") == "reasoning"]
        thoughts = [part for item in reasoned for key in ("summary", "content") for part in _tables(item.get(key))]
        usage = read_usage(answer.get("usage"), "input_tokens", "output_tokens")
        reason = "stop" if status == "completed" else status
        if status == "incomplete":
            why = _words(_table(answer.get("incomplete_details")).get("reason"))
            reason = FINISH.get(why or "", why)
        # llama.cpp calls an answer completed that ran into its limit.
        if reason == "stop" and limit and (usage.output_tokens or 0) >= limit:
            reason = "length"
        texts, refusals = ([_words(part.get(key)) or "" for part in messages] for key in ("text", "refusal"))
        text = "".join(texts) or "".join(refusals)
        reasoning = "\n\n".join(filter(None, (_words(part.get("text")) for part in thoughts)))
        how = {"finish_reason": reason, "usage": usage, "provider": "responses"}
        return _reply(answer, asked_model, text=text, reasoning=reasoning, **how)


WIRES: dict[Api, Chat | Responses] = {"chat": Chat(), "responses": Responses()}
OWN_URL = "https://api.openai.com/v1"
OWN_HOST = "api.openai.com"
ADDRESS = "--base-url or OPENAI_BASE_URL"
"""The options that name the server; a preset names it too, and --base-url overrides all."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}  # no proxy can reach these for us
NO_KEY = "none"  # sent to servers that ask for no key, since the client insists on one
SHORTEST_SECRET = 8
"""Characters. A shorter key is a word such as `none` or `EMPTY`, which may occur in an honest answer."""


class OpenAIProvider:
    """The client of a server. The constructor raises for a missing key or a malformed address, before a run starts."""

    name = "openai"

    def __init__(self, settings: ServerOptions | None = None, environment: Mapping[str, str] = os.environ) -> None:
        self.settings = settings or ServerOptions()
        self.base_url = self.settings.base_url or environment.get("OPENAI_BASE_URL") or OWN_URL
        host = _host(self.base_url)
        self._is_own = host == OWN_HOST
        self._is_near, self._has_listened, self._has_answered = host in LOOPBACK, False, False
        self._key = self._found_key(environment)
        self._wire = WIRES[self.settings.api]
        self._client_options: dict[str, Any] = {
            "api_key": self._key,
            "base_url": self.base_url,
            "max_retries": self.settings.max_retries,
            "timeout": self.settings.timeout_s,
        }

    @property
    def place(self) -> str:
        return f"{self.base_url} {self.settings.api}"

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """See `Provider.complete`. A client lives for one request, so that any event loop may be the next one."""
        import openai

        start = time.monotonic()
        self._require_listener()
        with self.explained(f"model {request.model!r}, or no {self._wire.noun}s"):
            try:
                unproxied = openai.DefaultAsyncHttpxClient(trust_env=False) if self._is_near else None
                own_client = openai.AsyncOpenAI(http_client=unproxied, **self._client_options)
                async with asyncio.timeout(self.settings.deadline_s), own_client as client:
                    answer: Any = await self._wire.send(client, self._wire.arguments(request, self._is_own))
            except TimeoutError as error:
                raise self._error(f"did not finish within {self.settings.deadline_s:.0f} s", retryable=True) from error
        return self._read(answer, request, time.monotonic() - start)

    def _require_listener(self) -> None:
        """Raise where nothing has listened on this machine yet: the client would try for a quarter of a minute."""
        if self._is_near and not self._has_listened:
            port = urlsplit(self.base_url).port or (443 if self.base_url.startswith("https:") else 80)
            try:
                socket.create_connection((_host(self.base_url), port), timeout=1).close()
            except ConnectionRefusedError as error:
                raise self._error(f"cannot be reached ({error}); start it, or name another by {ADDRESS}") from None
            except OSError:
                pass  # the client says more of it
        self._has_listened = True

    @contextmanager
    def plain_client(self, wanted: str) -> "Iterator[openai.OpenAI]":
        """Open a client without an event loop, for other requests than to a model; `wanted` as in `explained`."""
        import openai

        unproxied = openai.DefaultHttpxClient(trust_env=False) if self._is_near else None
        own_client = openai.OpenAI(http_client=unproxied, **self._client_options)
        self._require_listener()
        with self.explained(wanted), own_client as client:
            yield client

    @contextmanager
    def explained(self, wanted: str) -> Iterator[None]:
        """Convert the client's errors to `ProviderError`; `wanted` names what a server may lack."""
        import openai

        try:
            yield
        except openai.APIResponseValidationError as error:
            raise self._no_answer() from error
        except openai.APIStatusError as error:
            raise self._refused(error, wanted) from None
        except openai.APIConnectionError as error:
            raise self._unreachable(error) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:  # what calls itself JSON and is none
            raise self._no_answer() from error

    def _found_key(self, environment: Mapping[str, str]) -> str:
        variable = self.settings.api_key_env
        key = environment.get(variable, "").strip()
        if not key and (self._is_own or self.settings.needs_key):
            remedy = "set it, or name a server without keys by --base-url"
            raise ProviderError(f"there is no key in the variable {variable}; {remedy}")
        if not (key.isascii() and key.isprintable()):
            raise ProviderError(f"the key in {variable} holds characters that no key has; copy it again")
        return key or NO_KEY

    def _read(self, answer: Any, request: Request, latency_s: float) -> Reply:
        import openai

        # Any JSON object comes back from the client as an answer with empty fields.
        if not isinstance(answer, openai.BaseModel):
            raise self._no_answer()
        plain = json.loads(self._without_key(json.dumps(answer.to_dict(warnings=False), default=str)))
        reply = self._wire.read(plain, request.model, request.max_tokens)
        if reply is None:
            raise self._no_answer()
        if isinstance(reply, str):
            raise self._error(f"could not finish the answer ({_one_line(reply)}); try again later", retryable=True)
        self._has_answered = True
        request_id = getattr(answer, "_request_id", None)
        own = {} if request_id is None else {"provider_request_id": self._without_key(request_id)}
        return Reply.model_validate(reply.model_dump() | {"latency_s": latency_s, **own})

    def _refused(self, error: "openai.APIStatusError", wanted: str) -> ProviderError:
        status = error.status_code
        message = error.body.get("message") if isinstance(error.body, dict) else None  # an HTML page has none
        said = self._without_key(_one_line(message)) if isinstance(message, str) else "no reason given"
        key = self.settings.api_key_env
        match status:
            case 403 if proxy := self._proxy():
                remedy = f"check what the key in {key} allows, and what the proxy lets through"
                return self._error(f"or the proxy {proxy} refused the request (403); {remedy}")
            case 401 | 403:
                return self._error(f"refused the key in {key} ({status}); check what it allows")
            case 404:
                return self._error(f"knows no {wanted} (404: {said}); check the names, and the address in {ADDRESS}")
            case 429 if error.code != "insufficient_quota":
                return self._error(f"is asked too often (429: {said}); wait, or use fewer slots", retryable=True)
            case 429:
                return self._error(f"says that the quota is used up ({said}); top it up or use another key")
            case 408 | 409 | 500 | 501 | 502 | 503 | 504 | 529:
                return self._error(f"is in trouble ({status}: {said}); try again later", retryable=True)
        return self._error(f"refused the request ({status}: {said}); check --model and --set")

    def _unreachable(self, error: "openai.APIConnectionError") -> ProviderError:
        import openai

        if isinstance(error, openai.APITimeoutError):
            remedy = "try again, or ask for less by --set max_tokens=N"
            return self._error(f"was silent for {self.settings.timeout_s:.0f} s; {remedy}", retryable=True)
        causes: list[BaseException] = [error]
        while cause := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(cause)
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return self._error("has a certificate that this machine does not trust; install ca-certificates")
        why = self._without_key(_one_line(str(causes[-1]) or type(causes[-1]).__name__))
        if proxy := self._proxy():
            remedy = f"check the address in {ADDRESS} and what the proxy lets through, or set NO_PROXY"
            return self._error(f"cannot be reached through the proxy {proxy} ({why}); {remedy}")
        return self._error(f"cannot be reached ({why}); start it, or name another by {ADDRESS}")

    def _proxy(self) -> str:
        return "" if self._is_near else proxy_for(self.base_url)

    def _no_answer(self) -> ProviderError:
        remedy = "try again later" if self._has_answered else f"check {ADDRESS}: did you forget /v1?"
        return self._error(f"did not answer with a {self._wire.noun}; {remedy}", retryable=self._has_answered)

    def _error(self, what: str, *, retryable: bool = False) -> ProviderError:
        return ProviderError(f"the server {self.base_url} {what}", retryable=retryable)

    def _without_key(self, text: str) -> str:
        if len(self._key) < SHORTEST_SECRET:
            return text
        as_json = json.dumps(self._key)[1:-1]
        return text.replace(self._key, "[key]").replace(as_json, "[key]")


def _host(base_url: str) -> str:
    """Give the host of an address. Raises `ProviderError` where it is malformed or holds a password."""
    try:
        parts = urlsplit(base_url)
        host, password = parts.hostname, parts.password
    except ValueError as error:
        raise ProviderError(f"{base_url!r} in {ADDRESS} is no address ({error}); correct it") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ProviderError(f"{base_url!r} in {ADDRESS} is no address; it should look like http://localhost:8000/v1")
    if password is not None:
        raise ProviderError(f"the address of {host} holds a password, which the record would show; put it into the key")
    return host


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def proxy_for(address: str) -> str:
    """Find the proxy that the environment names for an address, without credentials; empty where it names none."""
    parts, proxies = urlsplit(address), getproxies_environment()
    named = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not named or proxy_bypass(parts.hostname or ""):
        return ""
    return urlsplit(named if "//" in named else f"//{named}").netloc.rpartition("@")[2]


def provider(options: ServerOptions, run: RunLog) -> Provider:
    return OpenAIProvider(options)
