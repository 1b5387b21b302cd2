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


def test_a_cascade_that_begins_where_nothing_is_scored_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "h.yaml"

    def check(more: str) -> int:
        file.write_text(
            "models:\n"
            f"  - upstream: {{name: cloud, url: 'http://127.0.0.1:9'{more}}}\n"
            "  - {model: a.gguf, served_model_name: own}\n"
            "routes:\n"
            "  names: [{name: careful, cascade: {first: cloud, then: own}}]\n"
        )
        return main(["config", "check", str(file)])

    assert check(", logprobs: true") == check(", kind: llamacpp") == 0
    assert check(", kind: llamacpp, logprobs: false") == 2
    capsys.readouterr()
    assert check("") == 2
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\ntenants: [{name: a, keys_env: [NOT_SET_7Q]}]", "2: tenants[0].keys_env: NOT_SET_7Q is"),
        (
            "models:\n  - upstream: {name: c, url: 'http://h', api_key_env: NOT_SET_7Q}",
            "2: models[0].upstream.api_key_env: NOT_SET_7Q is not set",
        ),
        ("\nadmin_key: [short]", "2: admin_key: must have 16 characters or more"),
        (
            "api_key: [the-same-key-for-both]\nadmin_key: [the-same-key-for-both]",
            "2: admin_key: must not be a key for /v1 as well",
        ),
        ("tenants:\n  - name: a\n    models: [smal]", "3: tenants[0].models[0]: 'smal' is no name"),
        ("\nredis_url: redis://r:99999", "2: redis_url: must be redis://"),
        ("rate_limits:\n  redis_url: r", "2: rate_limits.redis_url: must be redis://"),
        ("\nredis_url: redis+sentinel://a:1,b:1", "2: redis_url: must be redis://"),
        ("rate_limits:\n  redis_timeout: .nan", "2: rate_limits.redis_timeout: must be 0.05 to"),
        ("\ndatabase_url: mysql://x", "2: database_url: must be sqlite:///FILE or"),
        ('host: "a\\0b"', "1: host: must be text without line ends and control characters"),
        ("max_num_seqs: 100000000000000000000", "1: max_num_seqs: must be at most"),
        ("log_json: [yes]", "1: log_json: must be true or false"),
    ],
)
def test_what_a_start_would_stumble_over_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "h.yaml"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"headway config: {file}:{said}")
