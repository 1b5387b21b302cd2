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
        (
            "\ntenants: [{name: a, keys_env: [NOT_SET_7Q]}]",
            "2: tenants[0].keys_env[0]: NOT_SET_7Q is",
        ),
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
        ("\nadmin_listen: 127.0.0.1:1", "2: admin_listen: needs an --admin-key"),
        ("\nledger_spool_bytes: 1", "2: ledger_spool_bytes: must be at least 1048576 bytes"),
        ("\nblock_size: 3", "2: block_size: must be a power of two"),
        ("models:\n  - model: a\n    block_size: 3", "3: models[0].block_size: must be a power"),
        ("\ndatabase_url: sqlite://x", "2: database_url: must be sqlite:///FILE or"),
        ("database_url: 'sqlite:///:memory:'", "1: database_url: must be sqlite:///FILE or"),
        ("data_dir: 'a?b'", "1: data_dir: must not have a ? in its path"),
        ("\napi_key: [ключ]", "2: api_key: must be a list of texts of ASCII characters"),
        ("\ntenant: ['a:vip:ключ']", "2: tenant: must be a list of texts of ASCII characters"),
        ("tenants:\n  - name: a\n    keys: [k, ключ]", "3: tenants[0].keys[1]: is a key that no"),
        ("models:\n  - model: a\n  - model: a", "3: models[1]: its name 'a' is one of models[0]"),
        (
            "models:\n  - model: a\n  - upstream: {name: [b, a], url: 'http://h'}",
            "3: models[1]: its name 'a' is one of models[0] too",
        ),
        ("models:\n  - model: a\n    upstream:", "3: models[0].upstream: is empty"),
        ("models:\n  - served_model_name: a\n    upstream:", "3: models[0].upstream: is empty"),
        (
            "models:\n  - served_model_name: a\n    upstream: {url: 'http://h', model: ''}",
            "3: models[0].upstream.model: must not be empty",
        ),
        (
            "models:\n  - upstream:\n      name: a\n      url: 'http://h'\n      kind: vlm",
            "5: models[0].upstream.kind: must be one of openai, vllm, sglang, llamacpp, headway; "
            "got 'vlm'",
        ),
        (
            "models:\n  - upstream:\n      name: a\n      url: 'http://h'\n      modalities: [x]",
            "5: models[0].upstream.modalities[0]: must be one of image, audio, video, file; "
            "got 'x'",
        ),
        (
            "models:\n  - upstream:\n      name: a\n      url: 'http://h'\n      timeouts:\n"
            "        totl: 5",
            "6: models[0].upstream.timeouts.totl: is not a setting; did you mean total?",
        ),
        (
            "models:\n  - upstream:\n      name: a\n      url: 'http://h'\n      headers:\n"
            "        x.a: secret\n        x.b: [secret]",
            "7: models[0].upstream.headers.x.b: must be text",
        ),
        ("rate_limits:\n  default: {tokens_per_minute: 20k}", "2: rate_limits.default.tokens_per"),
        (
            "rate_limits:\n  tenants:\n    a.b: {}\n    a.c:\n      tokens_per_minute: 20k",
            "5: rate_limits.tenants.a.c.tokens_per_minute: must be a whole number, or left out; "
            "got '20k'",
        ),
        (
            "models: [{model: Qwen2.5-7B.gguf}]\nprices:\n  models:\n"
            "    Qwen2.5-7B:\n      prompt: -1\n      completion: 1",
            "5: prices.models.Qwen2.5-7B.prompt: must be from 0 to",
        ),
        (
            "models: [{model: m}]\nprices:\n  models:\n    m:\n      prompt: cheap\n"
            "      completion: 1",
            "5: prices.models.m.prompt: must be a number; got 'cheap'",
        ),
        (
            "models: [{model: a.gguf, served_model_name: [m, n]}]\nprices:\n  models:\n"
            "    n: {prompt: 1, completion: 1}",
            "4: prices.models.n: is another name of 'm'; a price stands under a model's first name",
        ),
        ("routes:\n  auto:\n    small: a\n", "2: routes.auto.medium: is missing"),
        (
            "routes:\n  auto:\n    method: best",
            "3: routes.auto.method: must be one of classifier, ",
        ),
        (
            "models: [{model: m}]\nroutes:\n  names:\n    - name: a\n      pool: m\n"
            "      aliases:\n        - b\n        - c d",
            "8: routes.names[0].aliases[1]: 'c d' must be",
        ),
        ("jwt:\n  jwks: /none.json\n  issuer: i\n  audience: a", "2: jwt.jwks: cannot be read"),
        ("tenants:\n  - name: a\n    limits:\n      rpm: 5", "4: tenants[0].limits.rpm: is not"),
        ("tenants:\n  - name: a\n    keys: sk-hush", "3: tenants[0].keys: must be a list\n"),
    ],
)
def test_what_a_start_would_stumble_over_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "h.yaml"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"headway config: {file}:{said}")


def test_a_key_set_that_is_none_is_told_and_one_behind_a_url_is_not_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, keys = tmp_path / "h.yaml", tmp_path / "keys.json"
    keys.write_text("{}")
    text = "jwt: {jwks: PLACE, issuer: i, audience: a}\n"
    file.write_text(text.replace("PLACE", str(keys)))
    assert main(["config", "check", str(file)]) == 2
    assert f"{file}:1: jwt.jwks: is not a JSON object with a list" in capsys.readouterr().err
    file.write_text(text.replace("PLACE", "http://127.0.0.1:9/none"))
    assert main(["config", "check", str(file)]) == 0


def test_what_is_wrong_is_named_and_no_secret_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "h.yaml"
    for text in (
        "tenants:\n  - name: a\n    keys: sk-hush",
        "tenants:\n  - name: a\n    keys: [[sk-hush]]",
        "rate_limits:\n  redis_url: [redis://:sk-hush@r]",
        "models:\n  - upstream: {name: c, url: 'http://h', headers: sk-hush}",
        "tenants:\n  - {name: a, keys: [sk-hush]}\n  - {name: b, keys: [sk-hush]}",
    ):
        file.write_text(text)
        assert main(["config", "check", str(file)]) == 2
        assert "sk-hush" not in capsys.readouterr().err
