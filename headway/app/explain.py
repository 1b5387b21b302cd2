"""`headway explain`: what happened to one request, and why."""

import argparse

import msgspec

from headway.app.admin_desk import add_source
from headway.app.ledger_source import asked_server, open_usage
from headway.core.base.errors import StartError
from headway.service.gateway.explain import explain
from headway.service.openai.usage_schema import Explanation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("request_id", help="the server's id of it, or the client's X-Request-Id")
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="everything that is recorded")


def run(chosen: argparse.Namespace) -> int:
    """Print it; raises StartError."""
    found = _from_server(chosen) if chosen.url else _from_database(chosen)
    print(msgspec.json.encode(found).decode() if chosen.json else found.text)
    return 0


def _from_database(chosen: argparse.Namespace) -> Explanation:
    with open_usage(chosen) as store:
        record = store.find(chosen.request_id)
    if record is None:
        raise StartError(f"no request {chosen.request_id!r} is recorded")
    return explain(record)


def _from_server(chosen: argparse.Namespace) -> Explanation:
    answer = asked_server(chosen, f"/admin/requests/{chosen.request_id}", {})
    try:
        return msgspec.convert(answer, Explanation)
    except msgspec.MsgspecError as error:
        raise StartError(f"{chosen.url} answered with something else: {error}") from None
