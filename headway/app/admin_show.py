"""Answers of /admin for people: a few columns, or JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

NO_DATE_S = 253402300800  # 10000-01-01: calendars here end before it

Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]


def show(thing: str, verb: str, answer: Any, *, as_json: bool) -> str:
    """The text of an answer; of a new key the key alone, so that a script can take it."""
    if as_json or verb == "export":
        return json.dumps(answer, indent=2, ensure_ascii=False)
    if "data" in answer:
        return _table(COLUMNS[thing], answer["data"])
    if verb == "delete":
        return f"deleted tenant {answer['name']} and its keys"
    if verb == "erase":
        rows = ", ".join(f"{count} of {table}" for table, count in answer["rows"].items())
        return f"erased tenant {answer['name']}: {rows}"
    return _of_key(answer) if thing == "key" else _of_tenant(answer)


def remark(answer: Any) -> str:
    """What a person should know beside that, "" if nothing."""
    if "key" not in answer:
        return ""
    return f"This is the only time that the key is shown. {_told(answer)}"


def _of_tenant(answer: Mapping[str, Any]) -> str:
    return "\n".join(f"{name:12} {value(answer)}" for name, value in COLUMNS["tenant"].items())


def _of_key(key: Mapping[str, Any]) -> str:
    return str(key["key"]) if "key" in key else _told(key)


def _told(key: Mapping[str, Any]) -> str:
    return f"Key {key['id']} of tenant {key['tenant']}: {_state(key)}."


def _state(key: Mapping[str, Any]) -> str:
    if key["revoked"] is not None:
        return f"revoked {_time(key['revoked'])}"
    if key["expires"] is not None:
        return f"expires {_time(key['expires'])}"
    return "does not expire"


def _limits(tenant: Mapping[str, Any]) -> str:
    given = [f"{name}={value}" for name, value in tenant["limits"].items() if value is not None]
    return " ".join(given) or "none"


def _time(seconds: float) -> str:
    if seconds >= NO_DATE_S:
        return "after the year 9999"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


COLUMNS: Mapping[str, Columns] = {
    "tenant": {
        "name": lambda each: str(each["name"]),
        "class": lambda each: str(each["class"]),
        "weight": lambda each: f"{each['weight']:g}",
        "limits": _limits,
        "models": lambda each: " ".join(each["models"]) or "all",
        "may degrade": lambda each: "yes" if each["may_degrade"] else "no",
        "state": lambda each: "disabled" if each["disabled"] else "enabled",
        "created": lambda each: _time(each["created"]),
    },
    "key": {
        "id": lambda each: str(each["id"]),
        "tenant": lambda each: str(each["tenant"]),
        "label": lambda each: str(each["label"]),
        "created": lambda each: _time(each["created"]),
        "state": _state,
    },
    "audit": {
        "id": lambda each: str(each["id"]),
        "when": lambda each: _time(each["at"]),
        "who": lambda each: str(each["who"]),
        "what": lambda each: str(each["action"]),
        "tenant": lambda each: str(each["tenant"]),
        "subject": lambda each: str(each["subject"]),
    },
}


def _table(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
