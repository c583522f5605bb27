"""What the service can be asked, as an OpenAPI document, and as a page that needs no network."""

import json
from collections.abc import Mapping
from functools import cache
from html import escape
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelwright.sandbox.service.jobs import MOST_WAIT_S, Job, JobRequest, ServiceFacts


class Path(NamedTuple):
    """One thing that can be asked."""

    method: str
    path: str
    summary: str
    answers: dict[int, str]
    query: Mapping[str, str] = MappingProxyType({})
    result: str | None = None


WAIT = {"wait": f"Seconds to wait for the job's end, at most {MOST_WAIT_S:.0f}; default: 0."}
EVIDENCE = {"evidence": "With any value: the whole verdict and its device too, under `verdict` and `judged_on`."}
REFUSALS = {401: "The token is missing or wrong."}
PATHS = (
    Path(
        "post",
        "/v1/jobs",
        "Have a candidate judged.",
        {
            200: "It has ended: with `wait`, or since its key was known.",
            202: "It is kept, and will be judged.",
            409: "The key belongs to another request.",
            413: "The body is too large.",
            415: "The body is not said to be JSON.",
            422: "The request can not be met; `error` says why.",
            429: "The queue is full; Retry-After says when to ask again.",
            503: "The service is about to end, or can not write; Retry-After says when to ask again.",
        },
        WAIT | EVIDENCE,
        "Job",
    ),
    Path(
        "get", "/v1/jobs/{id}", "A job as it stands.", {200: "The job.", 404: "There is none."}, WAIT | EVIDENCE, "Job"
    ),
    Path("delete", "/v1/jobs/{id}", "Cancel a job.", {200: "The job, as it ended.", 404: "There is none."}, {}, "Job"),
    Path(
        "get",
        "/v1/jobs/{id}/events",
        "A job's steps as server-sent events: queued, building, built, judging, lost, done, cancelled.",
        {200: "The stream, up to the job's end.", 404: "There is none."},
    ),
    Path("get", "/v1/problems", "The names of the catalog.", {200: "The names."}),
    Path(
        "get",
        "/v1/problems/{name}",
        "A problem of the catalog, with its reference.",
        {
            200: "The problem, as `record` takes it, and its digest.",
            404: "There is none.",
            422: "No such size or dtype.",
        },
        {"size": "cpu or gpu; default: cpu.", "dtype": "float32, float16 or bfloat16; default: as it is."},
    ),
    Path("get", "/v1/service", "Devices and version of the service.", {200: "What it is."}, {}, "ServiceFacts"),
    Path("get", "/healthz", "Whether it takes jobs; asks for no token.", {200: "It does.", 503: "It does not."}),
    Path("get", "/metrics", "Figures for Prometheus.", {200: "The figures."}),
)


@cache
def description() -> dict[str, Any]:
    """The OpenAPI document."""
    schemas: dict[str, Any] = {}
    for model in (JobRequest, Job, ServiceFacts):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    paths: dict[str, Any] = {}
    for one in PATHS:
        paths.setdefault(one.path, {})[one.method] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kernelwright",
            "version": "1",
            "description": "A judge of generated kernels that stays warm.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _operation(one: Path) -> dict[str, Any]:
    places = {name: "path" for name in ("id", "name") if f"{{{name}}}" in one.path} | dict.fromkeys(one.query, "query")
    parameters = [
        {
            "name": name,
            "in": place,
            "required": place == "path",
            "description": one.query.get(name, ""),
            "schema": {"type": "string"},
        }
        for name, place in places.items()
    ]
    reference = {"schema": {"$ref": f"#/components/schemas/{one.result}"}}
    answers: dict[str, Any] = {
        str(status): {"description": words} for status, words in (one.answers | REFUSALS).items()
    }
    if one.result:
        for status in {"200", "202"} & set(answers):
            answers[status]["content"] = {"application/json": reference}
    operation: dict[str, Any] = {"summary": one.summary, "parameters": parameters, "responses": answers}
    if one.method == "post":
        body = {"schema": {"$ref": "#/components/schemas/JobRequest"}}
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    return operation


@cache
def page() -> str:
    """The same for a person."""
    parts = ["<!doctype html><meta charset=utf-8><title>kernelwright serve</title>"]
    parts.append(
        "<style>body{font:15px system-ui;max-width:60em;margin:2em auto;padding:0 1em}code{background:#8882}</style>"
    )
    parts.append("<h1>kernelwright serve</h1><p>The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>")
    for one in PATHS:
        query = "".join(f"<li><code>?{name}=</code> {escape(words)}</li>" for name, words in one.query.items())
        answers = "".join(f"<li>{status}: {escape(words)}</li>" for status, words in one.answers.items())
        parts.append(f"<h3><code>{one.method.upper()} {one.path}</code></h3><p>{escape(one.summary)}</p>")
        parts.append(f"<ul>{query}{answers}</ul>")
    for name, schema in description()["components"]["schemas"].items():
        parts.append(f"<h3>{name}</h3><pre>{escape(json.dumps(schema, indent=1))}</pre>")
    return "".join(parts)
