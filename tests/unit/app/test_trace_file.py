"""Recorded traces."""

from pathlib import Path

import pytest

from headway.app.trace_file import read_trace
from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.tenant import SloClass

TRACE = """\
{"arrival": 7.5, "prompt_tokens": 30, "output_tokens": 4, "prefix": "s", "prefix_tokens": 20}
{"arrival":5,"prompt_tokens":25,"output_tokens":2,"prefix":"s","prefix_tokens":20,"class":"vip"}

{"arrival": 8.0, "id": "x", "prompt_tokens": 9, "output_tokens": 2, "max_tokens": 6}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(text)
    return path


def test_arrivals_are_put_in_order_and_start_at_zero(tmp_path: Path) -> None:
    work = read_trace(write(tmp_path, TRACE), 0)
    assert [when for when, _ in work.arrivals] == [0.0, 2.5, 3.0]
    first, second, third = (planned for _, planned in work.arrivals)
    assert (len(first.prompt), first.output_tokens, first.group) == (25, 2, "vip")
    assert first.prompt[:20] == second.prompt[:20]
    assert first.prompt[20:] != second.prompt[20:25]
    assert (first.slo_class, first.first_token_budget_s) == (SloClass.VIP, 0.5)
    assert (third.slo_class, third.first_token_budget_s) == (SloClass.STANDARD, None)
    assert (third.id, third.output_tokens, third.max_tokens) == ("x", 2, 6)


def test_the_same_seed_gives_the_same_prompts(tmp_path: Path) -> None:
    path = write(tmp_path, TRACE)
    assert read_trace(path, 1) == read_trace(path, 1)
    assert read_trace(path, 1) != read_trace(path, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no request"),
        ("{", "line 1"),
        ('{"arrival": 0, "prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens must be at"),
        ('{"arrival": 0, "prompt_tokens": 1, "output_tokens": 0}', "output_tokens must be at"),
        ('{"arrival": 0, "prompt_tokens": 1, "output_tokens": 5, "max_tokens": 4}', "less than"),
        (
            '{"arrival": 0, "prompt_tokens": 1, "output_tokens": 5, "prefix_tokens": 4}',
            "prefix_tokens",
        ),
        ('{"arrival": 0, "prompt_tokens": 1, "output_tokens": 5, "colour": 4}', "colour"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        read_trace(write(tmp_path, text), 0)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"nowhere\.jsonl"):
        read_trace(tmp_path / "nowhere.jsonl", 0)
