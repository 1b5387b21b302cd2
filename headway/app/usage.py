"""`headway usage`: what was used, by whom and when, from the database or from a server."""

import argparse
import sys

import msgspec

from headway.app.admin_desk import add_source
from headway.app.ledger_source import asked_server, open_usage
from headway.core.base.errors import InvalidSetting, StartError
from headway.core.messages.usage import UsageQuery, UsageRow, check_span, read_groups, read_moment
from headway.service.gateway.usage_format import (
    NAMES,
    NUMBERS,
    usage_csv,
    usage_list,
    usage_table,
)
from headway.service.openai.usage_schema import UsageList


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_source(parser)
    parser.add_argument(
        "--by",
        default="tenant,model,day",
        metavar="GROUPS",
        help="of tenant, key, model, version, replica, endpoint, class, outcome, hour, day, month",
    )
    parser.add_argument("--from", dest="since", metavar="TIME", help="2026-11, 2026-11-30, ...")
    parser.add_argument("--to", dest="until", metavar="TIME", help="not included")
    parser.add_argument("--tenant", help="only this one's")
    parser.add_argument("--key", help="only this key's (its public id)")
    parser.add_argument("--model", help="only this model's")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--csv", action="store_true", help="as CSV")
    forms.add_argument("--json", action="store_true", help="as JSON")


def run(chosen: argparse.Namespace) -> int:
    """Print it; raises StartError."""
    query = _query(chosen)
    rows = _from_server(chosen, query) if chosen.url else _from_database(chosen, query)
    if chosen.json:
        print(msgspec.json.encode(usage_list(query.group_by, rows)).decode())
    elif chosen.csv:
        sys.stdout.write(usage_csv(query.group_by, rows))
    elif rows:
        print(usage_table(query.group_by, rows))
    else:
        print("no request is recorded for this")
    return 0


def _query(chosen: argparse.Namespace) -> UsageQuery:
    try:
        where = "--by"
        group_by = read_groups(chosen.by)
        where = "--from"
        since = None if chosen.since is None else read_moment(chosen.since)
        where = "--to"
        until = None if chosen.until is None else read_moment(chosen.until)
        check_span(since, until)
    except ValueError as error:
        raise InvalidSetting(where, str(error)) from None
    return UsageQuery(
        group_by=group_by,
        since=since,
        until=until,
        tenant=chosen.tenant,
        key=chosen.key,
        model=chosen.model,
    )


def _from_database(chosen: argparse.Namespace, query: UsageQuery) -> list[UsageRow]:
    with open_usage(chosen) as store:
        return store.usage(query)


def _from_server(chosen: argparse.Namespace, query: UsageQuery) -> list[UsageRow]:
    given = {
        "group_by": ",".join(query.group_by) or None,
        "from": query.since,
        "to": query.until,
        "tenant": query.tenant,
        "key": query.key,
        "model": query.model,
    }
    asked = {name: str(value) for name, value in given.items() if value is not None}
    answer = asked_server(chosen, "/admin/usage", asked)
    try:
        found = msgspec.convert(answer, UsageList)
        # A query cannot say that it wants no group: that is a list of one, the sum of all.
        data = found.data if query.group_by else [found.total] if found.data else []
        return [
            msgspec.convert(
                {"group": [row[name] for name in query.group_by]}
                | {name: row[NAMES.get(name, name)] for name in NUMBERS},
                UsageRow,
            )
            for row in data
        ]
    except (msgspec.MsgspecError, KeyError) as error:
        raise StartError(f"{chosen.url} answered with something else: {error}") from None
