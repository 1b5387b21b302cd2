"""`headway bench memory`."""

import json
from pathlib import Path
from typing import Any

import pytest

from headway.app.cli import main


def measured(folder: Path, *options: str) -> dict[str, Any]:
    target = folder / "out.json"
    command = ["bench", "memory", "--json", str(target), "--disable-tqdm", *options]
    assert main(command) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


@pytest.mark.spec("D6")
@pytest.mark.spec("L1")
def test_paging_uses_the_memory_that_reservation_leaves_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(tmp_path, "--quick")
    reserved, paged = found["cases"]["contiguous"], found["cases"]["paged"]
    assert reserved["use"]["utilisation"] <= 0.40, "what the field reports: 30 to 40 %"
    assert paged["use"]["utilisation"] >= 0.92
    assert paged["use"]["waste"] < 0.04
    assert found["concurrency_ratio"] >= 2.5
    assert reserved["burst"]["used"] < 0.5, "out of memory with most of it empty"
    assert paged["burst"]["requests"] >= 2.5 * reserved["burst"]["requests"]
    assert reserved["summary"]["total"]["lost"] == paged["summary"]["total"]["lost"] == 0
    shown = capsys.readouterr().out
    assert "concurrency_ratio" in shown
    assert "out of memory" in shown


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--positions", "2047"], "--positions"),
        (["--short", "50"], "--short"),
        (["--long", "2000+49"], "--long"),
        (["--short-share", "1.5"], "--short-share"),
    ],
)
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["bench", "memory", *options]) == 2
    assert problem in capsys.readouterr().err
