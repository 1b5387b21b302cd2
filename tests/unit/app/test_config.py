from pathlib import Path

import pytest

from headway.app.cli import main


def test_a_good_file_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "h.yaml"
    file.write_text("models:\n  - {model: a.gguf, served_model_name: [small]}\n  - b.gguf\n")
    assert main(["config", "check", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines() == [
        f"{file}: fine",
        "  model a.gguf: small",
        "  model b.gguf: b",
    ]


def test_a_bad_file_is_named_with_line_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "h.yaml"
    file.write_text("port: 8000\n\nmax_num_seqs: many\n")
    assert main(["config", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"headway config: {file}:3: max_num_seqs: must be a whole number")
    assert said.count("\n") == 1


def test_a_cascade_that_begins_at_another_server_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "h.yaml"
    file.write_text(
        "models:\n"
        "  - upstream: {name: cloud, url: 'http://127.0.0.1:9'}\n"
        "  - {model: a.gguf, served_model_name: own}\n"
        "routes:\n"
        "  names: [{name: careful, cascade: {first: cloud, then: own}}]\n"
    )
    assert main(["config", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"headway config: {file}:5: routes.names[0].cascade.first: 'cloud' is")


def test_limits_and_prices_are_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "h.yaml"
    file.write_text(
        "models: [{model: a.gguf, served_model_name: m}]\n"
        "rate_limits:\n  redis_url: redis://r\n  tenants: {a: {tokens_per_minute: 5}}\n"
        "prices: {models: {m: {prompt: 1, completion: 2}}}\n"
    )
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "  limits of 1 tenants, others have none of their own; counted in Redis",
        "  prices in USD: m",
    ]
