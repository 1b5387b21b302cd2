"""Which failure cases of tests/cases have a test, and why the others have none yet.

python tools/case_status.py          print the state of every case; 1 when the file is wrong
python tools/case_status.py --write  mark as covered what a test's name now mentions

A test covers a case when its name has the case's id with underscores:
`def test_usage_01_counts_each_choice_once`. tests/cases/status.toml has one table a case:
`state` is covered (with `tests`), open (belongs to what is being built) or later (with
`reason`: what it waits for).
"""

import argparse
import ast
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("tests/cases")
STATES = ("covered", "open", "later")
HEAD = """\
# State of each failure case of cases.jsonl; see README.md beside this file.
# Kept by tools/case_status.py: comments below this line are lost when it writes.
"""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says about one case."""

    state: str
    tests: tuple[str, ...] = ()  # path::function
    reason: str = ""
    note: str = ""


def case_ids(root: Path) -> list[str]:
    """Ids of all cases, in the order of the file."""
    lines = (root / FOLDER / "cases.jsonl").read_text().splitlines()
    return [str(json.loads(line)["id"]) for line in lines]


def read_entries(root: Path) -> dict[str, Entry]:
    """The status file; raises msgspec.ValidationError for a field it does not know."""
    with (root / FOLDER / "status.toml").open("rb") as file:
        return msgspec.convert(tomllib.load(file), dict[str, Entry])


def functions_of_tests(root: Path) -> list[str]:
    """`path::function` of every test function below tests/, methods included."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        found += [
            f"{path.relative_to(root)}::{node.name}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
        ]
    return found


def mentions(test: str, case_id: str) -> bool:
    """True when the test's name has the id as whole words."""
    name = test.rpartition("::")[2]
    return f"_{case_id.replace('-', '_')}_" in f"_{name}_"


def problems(ids: Sequence[str], entries: Mapping[str, Entry], tests: Iterable[str]) -> list[str]:
    """Everything that is wrong with the status file, one line each."""
    known = set(tests)
    found = [f"{case_id}: not listed" for case_id in ids if case_id not in entries]
    found += [f"{case_id}: no such case" for case_id in entries if case_id not in ids]
    for case_id, entry in entries.items():
        if entry.state not in STATES:
            found.append(f"{case_id}: state {entry.state!r} is none of {', '.join(STATES)}")
        if entry.state == "covered" and not entry.tests:
            found.append(f"{case_id}: covered, but names no test")
        if entry.state == "later" and not entry.reason:
            found.append(f"{case_id}: later, but gives no reason")
        for test in entry.tests:
            if test not in known:
                found.append(f"{case_id}: there is no test {test}")
            elif not mentions(test, case_id):
                found.append(f"{case_id}: the name of {test} does not have the id")
    return found


def updated(
    ids: Sequence[str], entries: Mapping[str, Entry], tests: Sequence[str]
) -> dict[str, Entry]:
    """Entries of all cases; those that tests mention are covered, others are no longer."""
    result = {}
    for case_id in ids:
        old = entries.get(case_id, Entry(state="open"))
        covering = tuple(test for test in tests if mentions(test, case_id))
        state = "covered" if covering else "open" if old.state == "covered" else old.state
        reason = "" if covering else old.reason
        result[case_id] = msgspec.structs.replace(old, state=state, tests=covering, reason=reason)
    return result


def as_toml(entries: Mapping[str, Entry]) -> str:
    """The text of the status file."""
    parts = [HEAD]
    for case_id, entry in entries.items():
        lines = [f"[{case_id}]", f'state = "{entry.state}"']
        if entry.tests:
            lines += ["tests = [", *(f"    {json.dumps(test)}," for test in entry.tests), "]"]
        for name in ("reason", "note"):
            if text := getattr(entry, name):
                lines.append(f"{name} = {json.dumps(text, ensure_ascii=False)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Print or update; see the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    ids, tests = case_ids(ROOT), functions_of_tests(ROOT)
    entries = read_entries(ROOT)
    if write:
        entries = updated(ids, entries, tests)
        (ROOT / FOLDER / "status.toml").write_text(as_toml(entries))
    for case_id, entry in entries.items():
        print(f"{case_id:28} {entry.state:8} {entry.reason or entry.note}")
    counts = Counter(entry.state for entry in entries.values())
    print(", ".join(f"{counts[state]} {state}" for state in STATES))
    found = problems(ids, entries, tests)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
