"""The API's description, made from the structs that check requests and write answers."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headway.service.openai import refused
from headway.service.openai.answer_schema import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Detokenized,
    ErrorBody,
    ModelInfo,
    ModelList,
    NativeEvent,
    Tokenized,
    VersionInfo,
)
from headway.service.openai.limits import ApiLimits
from headway.service.openai.openapi_bounds import NATIVE, add_bounds
from headway.service.openai.schema import ChatBody, CompletionBody, Message
from headway.service.openai.tokens import DetokenizeBody, TokenizeBody

_SCHEMAS = (
    ChatBody,
    CompletionBody,
    Message,
    TokenizeBody,
    DetokenizeBody,
    Tokenized,
    Detokenized,
    ChatCompletion,
    ChatChunk,
    Completion,
    NativeEvent,
    ModelInfo,
    ModelList,
    VersionInfo,
    ErrorBody,
)
_ERRORS = {
    "400": "A field is wrong, or not supported; `param` names it.",
    "401": "The API key is missing or wrong.",
    "404": "No such model.",
    "405": "Not with this method; `Allow` says which.",
    "408": "The body did not arrive in time.",
    "409": "It is there already, or not in a state for that.",
    "413": "The body is too large.",
    "415": "The body's content type or encoding is not read here.",
    "429": "A limit of the caller's own; `Retry-After` says how long to wait.",
    "500": "An error of the server's own.",
    "502": "The server behind this one failed; nothing of its answer was sent.",
    "504": "The server behind this one did not answer in time.",
    "503": "Full, starting or stopping; `Retry-After` says when to try again.",
}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path; `answers` maps content types to schema names, or None."""

    method: str
    path: str
    summary: str
    answers: dict[str, str | None]
    body: str | None = None
    errors: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()  # (name, "path" or "query")
    refuses: tuple[str, ...] = ()  # names of fields that are known and refused
    success: str = "200"
    needs_body: bool = True  # where there is one


_JSON = "application/json"
_EVENTS = "text/event-stream"
_GENERATION_ERRORS = (
    *("400", "401", "404", "408", "413", "415", "429"),
    *("500", "502", "503", "504"),
)

_TOKEN_ERRORS = _GENERATION_ERRORS

ENDPOINTS = (
    Endpoint(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a chat; with `stream` as events that end with [DONE].",
        body="ChatBody",
        answers={_JSON: "ChatCompletion", _EVENTS: "ChatChunk"},
        errors=_GENERATION_ERRORS,
        refuses=tuple(sorted(refused.CHAT)),
    ),
    Endpoint(
        method="post",
        path="/v1/completions",
        summary="Continue one or more prompts; with `stream` as events that end with [DONE].",
        body="CompletionBody",
        answers={_JSON: "Completion", _EVENTS: "Completion"},
        errors=_GENERATION_ERRORS,
        refuses=tuple(sorted(refused.COMPLETION)),
    ),
    Endpoint(
        method="post",
        path="/v1/chat",
        summary="Answer a chat as short events, always streamed, ended by [DONE].",
        body=NATIVE,
        answers={_EVENTS: "NativeEvent"},
        errors=_GENERATION_ERRORS,
        parameters=(("model", "query"),),
        refuses=tuple(sorted(refused.CHAT)),
    ),
    *(
        Endpoint(
            method="post",
            path=path,
            summary="Token ids of a prompt, or of a chat through the model's template.",
            body="TokenizeBody",
            answers={_JSON: "Tokenized"},
            errors=_TOKEN_ERRORS,
        )
        for path in ("/tokenize", "/v1/tokenize")
    ),
    *(
        Endpoint(
            method="post",
            path=path,
            summary="The text of token ids.",
            body="DetokenizeBody",
            answers={_JSON: "Detokenized"},
            errors=_TOKEN_ERRORS,
        )
        for path in ("/detokenize", "/v1/detokenize")
    ),
    Endpoint(
        method="get",
        path="/v1/models",
        summary="The served models.",
        answers={_JSON: "ModelList"},
        errors=("401", "503"),
    ),
    Endpoint(
        method="get",
        path="/v1/models/{id}",
        summary="One served model.",
        answers={_JSON: "ModelInfo"},
        errors=("401", "404", "503"),
        parameters=(("id", "path"),),
    ),
    Endpoint(
        method="post",
        path="/v1/connections/{id}/heartbeat",
        summary="The client of the request with this X-Headway-Connection-Id is still there.",
        answers={},
        errors=("401", "404", "503"),
        parameters=(("id", "path"),),
        success="204",
    ),
    Endpoint(
        method="get",
        path="/version",
        summary="The server's version.",
        answers={_JSON: "VersionInfo"},
    ),
    Endpoint(
        method="get",
        path="/health",
        summary="Whether the server and its engine are alive and make progress.",
        answers={_JSON: None},
        errors=("503",),
    ),
    Endpoint(
        method="get",
        path="/ready",
        summary="Whether a request sent now would be answered.",
        answers={_JSON: None},
        errors=("503",),
    ),
    Endpoint(
        method="get",
        path="/metrics",
        summary="Metrics in Prometheus's text format.",
        answers={"text/plain": None},
    ),
)


def openapi(version: str, limits: ApiLimits | None = None) -> dict[str, Any]:
    """An OpenAPI 3.1 document of all endpoints; `version` and limits are the server's."""
    _, components = msgspec.json.schema_components(
        _SCHEMAS, ref_template="#/components/schemas/{name}"
    )
    # The decoder takes every field as optional, so that errors can be written for people.
    add_bounds(components, limits or ApiLimits())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headway",
            "version": version,
            "description": "OpenAI's API on Headway's own engine. Unknown fields are ignored; "
            "null equals absent.",
        },
        "paths": paths_of(ENDPOINTS),
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def paths_of(endpoints: Sequence[Endpoint]) -> dict[str, dict[str, Any]]:
    """The part `paths` of a document."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint)
    return paths


def docs_page(version: str, document: Mapping[str, Any]) -> bytes:
    """`openapi`'s document as one HTML page that needs nothing from elsewhere."""
    schemas = document["components"]["schemas"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Headway API</title>",
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem}table{border-collapse:collapse}td,th{text-align:left;padding:.2rem .8rem "
        ".2rem 0;vertical-align:top;border-bottom:1px solid #ddd}code{font-size:.9em}</style>",
        f"<h1>Headway {html.escape(version)}</h1>",
        "<p>The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>",
    ]
    for endpoint in ENDPOINTS:
        parts.append(
            f"<h2><code>{endpoint.method.upper()} {html.escape(endpoint.path)}</code></h2>"
        )
        parts.append(f"<p>{html.escape(endpoint.summary)}</p>")
        if endpoint.body:
            parts.append(_table(schemas[endpoint.body]["properties"]))
        if endpoint.refuses:
            names = ", ".join(f"<code>{html.escape(name)}</code>" for name in endpoint.refuses)
            parts.append(f"<p>Refused with 400 where they ask for something: {names}.</p>")
    return "\n".join(parts).encode()


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": (endpoint.method + endpoint.path.translate(_TO_WORDS)).strip("_"),
        "summary": endpoint.summary,
        "responses": {
            endpoint.success: {
                "description": "Success.",
                "content": {kind: _schema(name) for kind, name in endpoint.answers.items()},
            },
            **{code: _error(code) for code in endpoint.errors},
        },
    }
    if endpoint.body:
        operation["requestBody"] = {
            "required": endpoint.needs_body,
            "content": {_JSON: _schema(endpoint.body)},
        }
    if endpoint.parameters:
        operation["parameters"] = [
            {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
            for name, where in endpoint.parameters
        ]
    if endpoint.refuses:
        operation["description"] = (
            "Refused with 400 where they ask for something: " + ", ".join(endpoint.refuses) + "."
        )
    return operation


_TO_WORDS = str.maketrans({"/": "_", "{": None, "}": None})


def _schema(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _error(code: str) -> dict[str, Any]:
    return {"description": _ERRORS[code], "content": {_JSON: _schema("ErrorBody")}}


def _table(properties: dict[str, dict[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(_type(schema))}"
        f"<td>{html.escape(_description(schema))}"
        for name, schema in properties.items()
    )
    return f"<table><tr><th>field<th>type<th>notes{rows}</table>"


def _description(schema: dict[str, Any]) -> str:
    found = [part.get("description", "") for part in (schema, *schema.get("anyOf", ()))]
    return next(filter(None, found), "")


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words: types and bounds."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(t for t in map(_type, schema["anyOf"]) if t != "null")
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None or high is None:
        return kind
    return f"{kind}, {low} ... {high}"
