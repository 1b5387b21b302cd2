"""`headway admin`: tenants, their keys and the audit log, on the database or at a server."""

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from headway.app.admin_desk import (
    Desk,
    HttpDesk,
    Refused,
    StoreDesk,
    add_source,
    admin_key_of,
    existing,
    no_database,
    settings_of,
)
from headway.app.admin_show import remark, show
from headway.app.stores import open_database_of
from headway.core.tenancy.account import KEY_ID, id_in
from headway.core.tenancy.administer import MAX_SHOWN
from headway.core.tenancy.limits import Limits
from headway.core.tenancy.tenant import NAMES, TENANT_NAME
from headway.service.store.settings import url_of

EXIT_OK, EXIT_REFUSED = 0, 1
LENGTH = re.compile(r"(\d{1,9})([smhd]?)")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
DAY_S = 86400.0
ALL = "all"  # in place of a model's name


class Command(NamedTuple):
    """One verb: its options, and the call that it is."""

    help: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Desk, argparse.Namespace], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare its sub-commands."""
    things = parser.add_subparsers(dest="thing", required=True)
    for thing, verbs in COMMANDS.items():
        about = things.add_parser(thing, help=f"{', '.join(verbs)}", allow_abbrev=False)
        actions = about.add_subparsers(dest="verb", required=True)
        for verb, command in verbs.items():
            action = actions.add_parser(verb, help=command.help, allow_abbrev=False)
            command.declare(action)
            action.add_argument("--json", action="store_true", help="print the answer as JSON")
            add_source(action)


def run(chosen: argparse.Namespace) -> int:
    """The whole command; raises StartError when there is neither a database nor a server."""
    command = COMMANDS[chosen.thing][chosen.verb]
    try:
        with _desk(chosen) as desk:
            answer = command.run(desk, chosen)
    except Refused as error:
        print(f"headway admin {chosen.thing} {chosen.verb}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    print(show(chosen.thing, chosen.verb, answer, as_json=chosen.json))
    if not chosen.json and (more := remark(answer)):
        print(more, file=sys.stderr)
    return EXIT_OK


@contextlib.contextmanager
def _desk(chosen: argparse.Namespace) -> Iterator[Desk]:
    settings = settings_of(chosen)
    if chosen.url is not None:
        with contextlib.closing(HttpDesk(chosen.url, admin_key_of(settings))) as desk:
            yield desk
        return
    url = url_of(settings.store)
    if url is None:
        raise no_database()
    makes_it = (chosen.thing, chosen.verb) == ("tenant", "create")  # what a database begins with
    stores = open_database_of(url if makes_it else existing(url))
    try:
        assert stores.accounts is not None
        yield StoreDesk(stores.accounts)
    finally:
        stores.close()


def _declare_name(action: argparse.ArgumentParser) -> None:
    action.add_argument("name", metavar="NAME", help="the tenant's name")


def _declare_tenant(action: argparse.ArgumentParser) -> None:
    _declare_name(action)
    action.add_argument("--class", dest="slo_class", choices=sorted(NAMES), help="its class")
    action.add_argument("--weight", type=float, help="of its share within its class")
    for field in Limits.__struct_fields__:
        unit = "MICROS" if field == "monthly_budget" else "N"
        action.add_argument(
            f"--{field.replace('_', '-')}", type=_limit, metavar=unit, help="or none"
        )
    action.add_argument(
        "--model",
        action="append",
        dest="models",
        metavar="NAME",
        help="a model that it may use; may be given again; all, for every one",
    )
    action.add_argument(
        "--may-degrade",
        action=argparse.BooleanOptionalAction,
        help="to a smaller model or a shorter answer, rather than be refused",
    )


def _declare_sure(action: argparse.ArgumentParser) -> None:
    _declare_name(action)
    action.add_argument("--yes", action="store_true", help="needed: nothing brings it back")


def _declare_key(action: argparse.ArgumentParser) -> None:
    action.add_argument("tenant", metavar="TENANT", help="whose key it will be")
    action.add_argument("--label", default="", help="what it is for")
    action.add_argument(
        "--expires-in", type=_length, metavar="TIME", help="such as 90d, 12h; never, if not given"
    )


def _declare_rotate(action: argparse.ArgumentParser) -> None:
    _declare_key_id(action)
    action.add_argument(
        "--overlap",
        type=_length,
        default=DAY_S,
        metavar="TIME",
        help="how long the old key goes on, such as 1d, 30m, 0 (default: 1d)",
    )


def _declare_key_id(action: argparse.ArgumentParser) -> None:
    action.add_argument("id", metavar="KEY_ID", help="the part of the key after hw-")


def _declare_keys(action: argparse.ArgumentParser) -> None:
    action.add_argument("tenant", metavar="TENANT", nargs="?", help="only this one's")


def _declare_audit(action: argparse.ArgumentParser) -> None:
    action.add_argument("--tenant", help="only what is about this one")
    action.add_argument("--limit", type=int, default=100, help="most entries (default: 100)")
    action.add_argument("--before", type=int, metavar="ID", help="only older ones than this")


def _create_tenant(desk: Desk, chosen: argparse.Namespace) -> Any:
    return desk.call("POST", "/admin/tenants", {"name": chosen.name, **_change(chosen)})


def _set_tenant(desk: Desk, chosen: argparse.Namespace) -> Any:
    change = _change(chosen)
    if not change:
        raise Refused("nothing to set; see --help")
    return desk.call("PATCH", _tenant(chosen.name), change)


def _delete_tenant(desk: Desk, chosen: argparse.Namespace) -> Any:
    _be_sure(chosen, "removes the tenant and its keys")
    return desk.call("DELETE", _tenant(chosen.name))


def _erase_tenant(desk: Desk, chosen: argparse.Namespace) -> Any:
    _be_sure(chosen, "removes all that is kept about the tenant, its usage too")
    return desk.call("POST", _tenant(chosen.name, "/erase"), {"confirm": chosen.name})


def _create_key(desk: Desk, chosen: argparse.Namespace) -> Any:
    body = {"label": chosen.label, "expires_in_s": chosen.expires_in}
    return desk.call("POST", _tenant(chosen.tenant, "/keys"), body)


def _list_keys(desk: Desk, chosen: argparse.Namespace) -> Any:
    all_keys = chosen.tenant is None
    return desk.call("GET", "/admin/keys" if all_keys else _tenant(chosen.tenant, "/keys"))


def _rotate_key(desk: Desk, chosen: argparse.Namespace) -> Any:
    return desk.call("POST", _key(chosen.id, "/rotate"), {"overlap_s": chosen.overlap})


def _audit(desk: Desk, chosen: argparse.Namespace) -> Any:
    query = {"tenant": chosen.tenant, "limit": chosen.limit, "before": chosen.before}
    given = {name: str(value) for name, value in query.items() if value is not None}
    return desk.call("GET", "/admin/audit", query=given)


def _get(ending: str = "") -> Callable[[Desk, argparse.Namespace], Any]:
    return lambda desk, chosen: desk.call("GET", _tenant(chosen.name, ending))


def _disable(is_disabled: bool) -> Callable[[Desk, argparse.Namespace], Any]:
    return lambda desk, chosen: desk.call("PATCH", _tenant(chosen.name), {"disabled": is_disabled})


def _change(chosen: argparse.Namespace) -> dict[str, Any]:
    """What was given of a tenant, as the call's body."""
    limits = {
        field: None if value < 0 else value
        for field in Limits.__struct_fields__
        if (value := getattr(chosen, field)) is not None
    }
    models = chosen.models
    if models is not None and ALL in models and len(models) > 1:
        raise Refused(f"--model {ALL} means every model; give it alone, or the others")
    given = {
        "class": chosen.slo_class,
        "weight": chosen.weight,
        "limits": limits or None,
        "models": [] if models == [ALL] else models,
        "may_degrade": chosen.may_degrade,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tenant(name: str, ending: str = "") -> str:
    """Path of a tenant's calls; raises Refused for what would be another path."""
    if not TENANT_NAME.fullmatch(name):
        raise Refused(f"There is no tenant {name[:MAX_SHOWN]!r}.")
    return f"/admin/tenants/{name}{ending}"


def _key(key_id: str, ending: str) -> str:
    """The same of a key; a whole one is not sent anywhere, as it would stand in logs."""
    given = id_in(key_id)
    if given is not None:
        raise Refused(f"That is more than the id of a key: give {given!r} alone.")
    if not KEY_ID.fullmatch(key_id):
        raise Refused(f"There is no key with the id {key_id[:MAX_SHOWN]!r}.")
    return f"/admin/keys/{key_id}{ending}"


def _be_sure(chosen: argparse.Namespace, what: str) -> None:
    if not chosen.yes:
        raise Refused(f"this {what}; say --yes if that is meant")


def _limit(text: str) -> int:
    """A whole number, or -1 for none."""
    if text == "none":
        return -1
    if not re.fullmatch(r"\d{1,15}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number or none, got {text!r}")
    return int(text)


def _length(text: str) -> float:
    """Seconds."""
    found = LENGTH.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a time such as 90d, 12h or 30m, got {text!r}")
    return float(int(found[1]) * SECONDS[found[2]])


def _nothing(_: argparse.ArgumentParser) -> None:
    """No option of its own."""


COMMANDS: Mapping[str, Mapping[str, Command]] = {
    "tenant": {
        "create": Command("make a tenant", _declare_tenant, _create_tenant),
        "list": Command(
            "all tenants", _nothing, lambda desk, _: desk.call("GET", "/admin/tenants")
        ),
        "show": Command("one tenant", _declare_name, _get()),
        "set": Command("change what is given, leave the rest", _declare_tenant, _set_tenant),
        "disable": Command("refuse its keys from now on", _declare_name, _disable(True)),
        "enable": Command("take its keys again", _declare_name, _disable(False)),
        "delete": Command("remove it and its keys", _declare_sure, _delete_tenant),
        "export": Command("all that is kept about it", _declare_name, _get("/export")),
        "erase": Command("remove all that is kept about it", _declare_sure, _erase_tenant),
    },
    "key": {
        "create": Command("make a key, and show it once", _declare_key, _create_key),
        "list": Command("keys without their secrets", _declare_keys, _list_keys),
        "rotate": Command("make a new one, and let the old one end", _declare_rotate, _rotate_key),
        "revoke": Command(
            "refuse it from now on",
            _declare_key_id,
            lambda desk, chosen: desk.call("POST", _key(chosen.id, "/revoke")),
        ),
    },
    "audit": {"list": Command("who changed what, newest first", _declare_audit, _audit)},
}
