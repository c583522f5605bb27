"""`server`: any server that speaks chat completions or responses, through the official client of OpenAI.

On the command line it goes by its preset's name. The key comes from an environment variable, goes into the request's
header and nowhere else: no record, message or error of ours holds it, not even where the server sends it back.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kernelwright.agent.log.records import Ask, Reply, Request, Usage
from kernelwright.agent.providers import Api, OpenAISettings, Provider, ProviderError, ProviderOptions, RunRecord
from kernelwright.prompts import Prompt

if TYPE_CHECKING:
    import openai


def proxy_for(address: str) -> str:
    parts, proxies = urlsplit(address), getproxies_environment()
    named = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not named or proxy_bypass(parts.hostname or ""):
        return ""
    return urlsplit(named if "//" in named else f"//{named}").netloc.rpartition("@")[2]


OWN_URL = "https://api.openai.com/v1"
OWN_HOST = "api.openai.com"
ADDRESS = "--base-url or OPENAI_BASE_URL"
"""Where a user names the server; a preset names it too, and --base-url goes before all."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
"""No proxy can reach these for us."""
NO_KEY = "none"
"""Sent to servers that ask for no key, since the client insists on one."""
SHORTEST_SECRET = 8
"""A shorter key is no secret but a word such as `none` or `EMPTY`, which may well stand in an honest answer."""


class OpenAIProvider:
    """See the module. Construct it before a run starts: a missing key or a malformed address is told at once."""

    name = "openai"

    def __init__(self, settings: OpenAISettings | None = None, environment: Mapping[str, str] = os.environ) -> None:
        self.settings = settings or OpenAISettings()
        self.base_url = self.settings.base_url or environment.get("OPENAI_BASE_URL") or OWN_URL
        host = _host(self.base_url)
        self._is_own = host == OWN_HOST
        self._is_near = host in LOOPBACK
        self._key = self._found_key(environment)
        self._wire = WIRES[self.settings.api]

    def __repr__(self) -> str:
        return f"OpenAIProvider({self.base_url!r})"

    @property
    def place(self) -> str:
        return f"{self.base_url} {self.settings.api}"

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """See `Provider.complete`. A client lives for one request, so that any event loop may be the next one."""
        import openai

        start = time.monotonic()
        with self.told(f"model {request.model!r}, or no {self._wire.noun}s"):
            try:
                unproxied = openai.DefaultAsyncHttpxClient(trust_env=False) if self._is_near else None
                own_client = openai.AsyncOpenAI(http_client=unproxied, **self._client_options())
                async with asyncio.timeout(self.settings.deadline_s), own_client as client:
                    answer: Any = await self._wire.send(client, self._wire.arguments(request, self._is_own))
            except TimeoutError as error:
                raise self._error(f"did not finish within {self.settings.deadline_s:.0f} s", retryable=True) from error
        return self._read(answer, request, time.monotonic() - start)

    def plain_client(self) -> "openai.OpenAI":
        """A client without an event loop, for what is no request to a model. Close it."""
        import openai

        unproxied = openai.DefaultHttpxClient(trust_env=False) if self._is_near else None
        return openai.OpenAI(http_client=unproxied, **self._client_options())

    @contextmanager
    def told(self, wanted: str) -> Iterator[None]:
        """Turn the client's errors into `ProviderError`; `wanted` is what a server may lack, in a few words."""
        import openai

        try:
            yield
        except openai.APIResponseValidationError as error:
            raise self._no_answer() from error
        except openai.APIStatusError as error:
            raise self._refused(error, wanted) from None
        except openai.APIConnectionError as error:
            raise self._unreachable(error) from None
        except json.JSONDecodeError as error:  # what calls itself JSON and is none
            raise self._no_answer() from error

    def _found_key(self, environment: Mapping[str, str]) -> str:
        variable = self.settings.api_key_env
        key = environment.get(variable, "").strip()
        if not key and (self._is_own or self.settings.needs_key):
            raise ProviderError(
                f"there is no key in the variable {variable}; set it, or name a server without keys by --base-url"
            )
        if not (key.isascii() and key.isprintable()):
            raise ProviderError(f"the key in {variable} holds characters that no key has; copy it again")
        return key or NO_KEY

    def _client_options(self) -> dict[str, Any]:
        return {
            "api_key": self._key,
            "base_url": self.base_url,
            "max_retries": self.settings.max_retries,
            "timeout": self.settings.timeout_s,
        }

    def _read(self, answer: Any, request: Request, latency_s: float) -> Reply:
        # Any JSON object comes back from the client as an answer with empty fields.
        if not self._wire.is_answer(answer):
            raise self._no_answer()
        plain = json.loads(self._without_key(json.dumps(answer.to_dict(warnings=False), default=str)))
        if (why := self._wire.failure(plain)) is not None:
            raise self._error(f"could not finish the answer ({_one_line(why)}); try again later", retryable=True)
        request_id = None if answer._request_id is None else self._without_key(answer._request_id)
        reply = self._wire.read(plain, request, request_id, latency_s)
        if reply is None:
            raise self._no_answer()
        return reply

    def _refused(self, error: "openai.APIStatusError", wanted: str) -> ProviderError:
        status = error.status_code
        message = error.body.get("message") if isinstance(error.body, dict) else None  # an HTML page has none
        said = self._without_key(_one_line(message)) if isinstance(message, str) else "no reason given"
        match status:
            case 401 | 403:
                return self._forbidden(status)
            case 404:
                return self._error(f"knows no {wanted} (404: {said}); check the names, and the address in {ADDRESS}")
            case 429 if error.code != "insufficient_quota":
                return self._error(f"is asked too often (429: {said}); wait, or use fewer slots", retryable=True)
            case 429:
                return self._error(f"says that the quota is used up ({said}); top it up or use another key")
            case 408 | 409 | 500 | 501 | 502 | 503 | 504 | 529:
                return self._error(f"is in trouble ({status}: {said}); try again later", retryable=True)
        return self._error(f"refused the request ({status}: {said}); check --model and --set")

    def _forbidden(self, status: int) -> ProviderError:
        key = self.settings.api_key_env
        if status == 403 and (proxy := self._proxy()):
            return self._error(
                f"or the proxy {proxy} refused the request (403); check what the key in {key} allows, and what the "
                "proxy lets through"
            )
        return self._error(f"refused the key in {key} ({status}); check what it allows")

    def _unreachable(self, error: "openai.APIConnectionError") -> ProviderError:
        import openai

        if isinstance(error, openai.APITimeoutError):
            return self._error(
                f"was silent for {self.settings.timeout_s:.0f} s; try again, or ask for less by --set max_tokens=N",
                retryable=True,
            )
        causes: list[BaseException] = [error]
        while cause := causes[-1].__cause__ or causes[-1].__context__:
            causes.append(cause)
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return self._error("has a certificate that this machine does not trust; install ca-certificates")
        why = self._without_key(_one_line(str(causes[-1]) or type(causes[-1]).__name__))
        if proxy := self._proxy():
            return self._error(
                f"cannot be reached through the proxy {proxy} ({why}); check the address in {ADDRESS}, and what the "
                "proxy lets through, or name the server in NO_PROXY"
            )
        return self._error(f"cannot be reached ({why}); start it, or name another by {ADDRESS}")

    def _proxy(self) -> str:
        return "" if self._is_near else proxy_for(self.base_url)

    def _no_answer(self) -> ProviderError:
        return self._error(f"did not answer with a {self._wire.noun}; check {ADDRESS}: did you forget /v1?")

    def _error(self, what: str, *, retryable: bool = False) -> ProviderError:
        return ProviderError(f"the server {self.base_url} {what}", retryable=retryable)

    def _without_key(self, text: str) -> str:
        if len(self._key) < SHORTEST_SECRET:
            return text
        as_json = json.dumps(self._key)[1:-1]
        return text.replace(self._key, "[key]").replace(as_json, "[key]")


def _host(base_url: str) -> str:
    """The host of an address that is fit for use and for the record; `ProviderError` where it is not."""
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


def provider(options: ProviderOptions, run: RunRecord) -> Provider:
    return OpenAIProvider(options.server)


class Lenient(BaseModel):
    """A part of a server's answer: what is not named here is let pass."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _cost(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


Count = Annotated[int | None, BeforeValidator(_count)]
"""A number of tokens; None where the server left it out or sent something else."""
Words = Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)]


class Message(Lenient):
    """Reasoning stands in `reasoning_content` (DeepSeek, older vLLM) or in `reasoning` (OpenRouter, newer vLLM)."""

    content: str | None = None
    refusal: Words = None
    reasoning: Words = None
    reasoning_content: Words = None


class ChatChoice(Lenient):
    message: Message
    finish_reason: Words = None


class Details(Lenient):
    cached_tokens: Count = None
    cache_write_tokens: Count = None
    reasoning_tokens: Count = None


class UsageForm(Lenient):
    def told(self, as_sent: str) -> Usage:
        """In our words; `as_sent` is the whole object as JSON."""
        raise NotImplementedError


class ChatUsage(UsageForm):
    """`cost` is OpenRouter's; `prompt_cache_hit_tokens` is DeepSeek's word for cached tokens."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    prompt_cache_hit_tokens: Count = None
    cost: Annotated[float | None, BeforeValidator(_cost)] = None

    def told(self, as_sent: str) -> Usage:
        inside, outside = self.prompt_tokens_details or Details(), self.completion_tokens_details or Details()
        hits = self.prompt_cache_hit_tokens
        return Usage(
            input_tokens=self.prompt_tokens,
            cached_tokens=hits if inside.cached_tokens is None else inside.cached_tokens,
            cache_write_tokens=inside.cache_write_tokens,
            output_tokens=self.completion_tokens,
            reasoning_tokens=outside.reasoning_tokens,
            cost_usd=self.cost,
            raw=as_sent,
        )


class Completion(Lenient):
    choices: tuple[ChatChoice, ...] = Field(min_length=1)
    id: Words = None
    model: Words = None


def read_usage(raw: object, form: type[UsageForm] = ChatUsage) -> Usage:
    """The usage object in our words; whatever it does not say, or says in a strange way, is None."""
    if not isinstance(raw, dict):
        return Usage()
    as_sent = json.dumps(raw, default=str)
    try:
        return form.model_validate(raw).told(as_sent)
    except ValidationError:
        return Usage(raw=as_sent)


def read_reply(answer: dict[str, Any], *, asked_model: str, request_id: str | None, latency_s: float) -> Reply | None:
    """The reply in a server's answer; None where the answer is no chat completion."""
    try:
        completion = Completion.model_validate(answer)
    except ValidationError:
        return None
    choice = completion.choices[0]
    message = choice.message
    return Reply(
        text=message.content or message.refusal or "",
        reasoning=message.reasoning or message.reasoning_content or "",
        finish_reason=choice.finish_reason,
        model=completion.model or asked_model,
        usage=read_usage(answer.get("usage")),
        provider="openai",
        provider_request_id=request_id or completion.id,
        latency_s=latency_s,
    )


LENGTH, FILTER = "max_output_tokens", "content_filter"
FINISH = {LENGTH: "length", FILTER: "content_filter"}
"""Why an answer is incomplete, in the words of chat completions."""
BROKEN = {"failed", "cancelled"}


def _parts(value: object) -> object:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


class ContentPart(Lenient):
    type: Words = None
    text: Words = None
    refusal: Words = None


Parts = Annotated[tuple[ContentPart, ...], BeforeValidator(_parts)]


class Item(Lenient):
    """One thing that the model put out: a message or its reasoning; tools are never offered to it."""

    type: Words = None
    content: Parts = ()
    summary: Parts = ()


class Trouble(Lenient):
    reason: Words = None
    message: Words = None


class ResponsesUsage(UsageForm):
    """llama.cpp sends None for details that it does not know."""

    input_tokens: Count = None
    output_tokens: Count = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None

    def told(self, as_sent: str) -> Usage:
        inside, outside = self.input_tokens_details or Details(), self.output_tokens_details or Details()
        return Usage(
            input_tokens=self.input_tokens,
            cached_tokens=inside.cached_tokens,
            cache_write_tokens=inside.cache_write_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=outside.reasoning_tokens,
            raw=as_sent,
        )


class ResponseObject(Lenient):
    output: tuple[Item, ...]
    status: Words = None
    id: Words = None
    model: Words = None
    incomplete_details: Trouble | None = None
    error: Trouble | None = None

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length` or `content_filter`, else what the server says."""
        if self.status == "incomplete":
            reason = self.incomplete_details.reason if self.incomplete_details else None
            return FINISH.get(reason or "", reason)
        return "stop" if self.status == "completed" else self.status


def _response(answer: dict[str, Any]) -> ResponseObject | None:
    try:
        return ResponseObject.model_validate(answer)
    except ValidationError:
        return None


class Chat:
    """`/chat/completions`."""

    noun = "chat completion"

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
        """The request as arguments of the client; `is_own` where OpenAI itself is asked."""
        # OpenAI's newer models refuse max_tokens; most other servers know nothing else.
        limit = "max_completion_tokens" if is_own else "max_tokens"
        message = {"role": "user", "content": request.prompt}
        options = _given({"temperature": request.temperature, limit: request.max_tokens})
        return {"model": request.model, "messages": [message], **options}

    async def send(self, client: "openai.AsyncOpenAI", arguments: dict[str, Any]) -> Any:
        return await client.chat.completions.create(**arguments)

    def is_answer(self, answer: Any) -> bool:
        from openai.types.chat import ChatCompletion

        return isinstance(answer, ChatCompletion)

    def failure(self, plain: dict[str, Any]) -> str | None:
        """None: a chat completion can not say that it failed."""
        return None

    def read(self, plain: dict[str, Any], request: Request, request_id: str | None, latency_s: float) -> Reply | None:
        """The reply to `request`; None where the answer is of another form."""
        return read_reply(plain, asked_model=request.model, request_id=request_id, latency_s=latency_s)


class Responses:
    """`/responses`: what OpenAI's reasoning models are best asked through. Nothing is kept on the server."""

    noun = "response"

    def arguments(self, request: Request, is_own: bool) -> dict[str, Any]:
        options = _given({"temperature": request.temperature, "max_output_tokens": request.max_tokens})
        kept = {"store": False} if is_own else {}
        return {"model": request.model, "input": request.prompt, **options, **kept}

    async def send(self, client: "openai.AsyncOpenAI", arguments: dict[str, Any]) -> Any:
        return await client.responses.create(**arguments)

    def is_answer(self, answer: Any) -> bool:
        from openai.types.responses import Response

        return isinstance(answer, Response)

    def failure(self, plain: dict[str, Any]) -> str | None:
        found = _response(plain)
        if found is None or found.status not in BROKEN:
            return None
        return (found.error.message if found.error else None) or found.status

    def read(self, plain: dict[str, Any], request: Request, request_id: str | None, latency_s: float) -> Reply | None:
        found = _response(plain)
        if found is None:
            return None
        messages = [part for item in found.output if item.type == "message" for part in item.content]
        thoughts = [part for item in found.output if item.type == "reasoning" for part in item.summary + item.content]
        usage, reason = read_usage(plain.get("usage"), ResponsesUsage), found.finish_reason
        # llama.cpp calls an answer completed that ran into its limit.
        if reason == "stop" and request.max_tokens and (usage.output_tokens or 0) >= request.max_tokens:
            reason = "length"
        return Reply(
            text="".join(part.text or "" for part in messages) or "".join(part.refusal or "" for part in messages),
            reasoning="\n\n".join(part.text for part in thoughts if part.text),
            finish_reason=reason,
            model=found.model or request.model,
            usage=usage,
            provider="responses",
            provider_request_id=request_id or found.id,
            latency_s=latency_s,
        )


WIRES: dict[Api, Chat | Responses] = {"chat": Chat(), "responses": Responses()}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
