"""Streams answers from an OpenAI-compatible server to a terminal."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec

from headway.core.base.errors import StartError

CONNECT_TIMEOUT_S = 10.0
MAX_ERROR_CHARS = 500


class AnswerFailed(Exception):
    """The server refused, or the answer broke off; the message is for the user."""


class Client:
    """One server and one of its models; used by one thread."""

    def __init__(self, url: str, *, api_key: str = "", model: str = "") -> None:
        """`url` with or without /v1. Raises StartError when no server answers there."""
        self._base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        self._http = httpx.Client(headers=headers, timeout=timeout)
        self.model = model or self._first_model()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def chat(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> Iterator[str]:
        """Pieces of the answer; closing the iterator stops the generation."""
        body = {"messages": messages, **options}
        for choice in self._choices("/v1/chat/completions", body):
            yield choice.get("delta", {}).get("content") or ""

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The same for a plain prompt."""
        for choice in self._choices("/v1/completions", {"prompt": prompt, **options}):
            yield choice.get("text") or ""

    def _choices(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        sent = {"model": self.model, "stream": True, **body}
        try:
            with self._http.stream("POST", self._base + path, json=sent) as response:
                if response.status_code != httpx.codes.OK:
                    raise AnswerFailed(_reason(response.status_code, response.read()))
                for line in response.iter_lines():
                    event = _event(line)
                    yield from event.get("choices", [])
        except httpx.HTTPError as error:
            raise AnswerFailed(f"the connection to {self._base} broke: {error}") from None

    def _first_model(self) -> str:
        try:
            answer = self._http.get(f"{self._base}/v1/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StartError(
                f"no server answers at {self._base} ({error}); start one with `headway serve`, "
                "or leave out --url"
            ) from None
        if answer.status_code != httpx.codes.OK:
            raise StartError(
                f"{self._base}/v1/models: {_reason(answer.status_code, answer.content)}"
            )
        try:
            return str(answer.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise StartError(f"{self._base} does not speak OpenAI's API") from None


def key_from(environment: Mapping[str, str] = os.environ) -> str:
    """The key that OpenAI's own client would send."""
    return environment.get("HEADWAY_API_KEY", "") or environment.get("OPENAI_API_KEY", "")


def _event(line: str) -> dict[str, Any]:
    """A line of the stream; raises AnswerFailed for an error that it carries."""
    if not line.startswith("data:"):
        return {}
    data = line[5:].strip()
    if data == "[DONE]":
        return {}
    try:
        event = msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise AnswerFailed("the server sent an event that is not JSON") from None
    if not isinstance(event, dict):
        raise AnswerFailed("the server sent an event that is no object")
    if event.get("error"):
        raise AnswerFailed(_message(event))
    return event


def _reason(status: int, body: bytes) -> str:
    try:
        told = _message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        told = body.decode(errors="replace")[:MAX_ERROR_CHARS]
    return f"HTTP {status}: {told}"


def _message(body: object) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    told = error.get("message") if isinstance(error, dict) else error
    return str(told or "an error without a message")[:MAX_ERROR_CHARS]
