"""Nothing that is committed names what lies outside the repository."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Spelt in parts, so that this file does not match itself.
OUTER = "sha" + "red"
FORBIDDEN = re.compile(
    "|".join(
        [
            # A folder of that name beside the repository, or at the start of a path.
            rf"(?<![\w/.-])(?:\.{{1,2}}/)*{OUTER}/(?=\w)",
            rf"\.\./{OUTER}\b",
            "/" + r"work/\w",
            "/" + r"opt/(?:wheels|pypi)",
        ]
    )
)


def offences(name: str, text: str) -> list[str]:
    """`file:line: text` of every line that names something outside."""
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for number, line in enumerate(text.splitlines(), 1)
        if FORBIDDEN.search(line)
    ]


def tracked_files() -> list[Path]:
    """Files that git tracks, or would with `git add`; all files where there is no git."""
    run = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if run.returncode == 0:
        found = [ROOT / name for name in run.stdout.decode().split("\0") if name]
    else:
        found = [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    return [path for path in found if path.is_file()]


def test_no_file_names_a_place_outside_the_repository() -> None:
    found: list[str] = []
    files = tracked_files()
    for path in files:
        text = path.read_bytes().decode(errors="replace")
        found += offences(str(path.relative_to(ROOT)), text)
    assert len(files) > 20, "the list of files is wrong"
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        f"see `../{OUTER}/design/style.md`",
        f"{OUTER}/bench/load.py --help",
        f'open("{OUTER}/cases.jsonl")',
        "cd /" + "work/main",
        "pip --find-links /" + "opt/wheels",
    ],
)
def test_a_line_that_names_one_is_found(line: str) -> None:
    assert offences("f", "fine\n" + line) == [f"f:2: {line}"]


@pytest.mark.parametrize(
    "line",
    [
        f'Request(run.prompt(1000, "w3/{OUTER}"))',
        f"/dev/{OUTER}/memory",
        f"own/{OUTER}/x",
        f"the {OUTER} prefix",
        "https://example.org/" + "working",
    ],
)
def test_a_line_that_only_looks_like_one_is_not(line: str) -> None:
    assert offences("f", line) == []
