"""Where settings come from, which source wins, and what a wrong one is told."""

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.app.option import Option
from headway.app.options import OPTIONS
from headway.app.readers import size, size_or_none, switch
from headway.app.settings import STRUCTS, Settings, default_of, merge
from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.limits import Limits
from headway.service.gateway.limit_settings import RateLimitSettings


def refusal(
    flags: dict[str, object] | None = None,
    environment: dict[str, str] | None = None,
    file: Path | None = None,
) -> str:
    with pytest.raises(InvalidSetting) as caught:
        merge(flags or {}, environment or {}, str(file) if file else None)
    return caught.value.message


def written(folder: Path, text: str, name: str = "headway.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_nothing_given_is_every_default() -> None:
    assert merge({}, {}, None) == Settings()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "port: 1\nhost: file\nblock_size: 8\n")
    environment = {"HEADWAY_PORT": "2", "HEADWAY_HOST": "variable"}
    settings = merge({"port": "3"}, environment, str(file))
    assert settings.gateway.port == 3
    assert settings.gateway.host == "variable"
    assert settings.engine.block_size == 8


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'model = "m.gguf"\nmax-model-len = "auto"\napi_key = ["a", "b"]\n'),
        ("a.yaml", "model: m.gguf\nmax-model-len: auto\napi_key: [a, b]\n"),
    ],
)
def test_files_may_be_toml_or_yaml_with_either_dash(tmp_path: Path, name: str, text: str) -> None:
    settings = merge({}, {"HEADWAY_CONFIG": str(written(tmp_path, text, name))}, None)
    assert settings.model == "m.gguf"
    assert settings.engine.max_model_len == "auto"
    assert settings.gateway.api_key == ("a", "b")


def test_an_empty_file_and_a_null_leave_the_defaults(tmp_path: Path) -> None:
    file = str(written(tmp_path, ""))
    assert merge({}, {}, file) == Settings(file=file)
    assert merge({}, {}, str(written(tmp_path, "seed: null"))) == Settings(file=file)


def test_a_wrong_value_names_its_source(tmp_path: Path) -> None:
    file = written(tmp_path, "block_size: many")
    assert refusal(file=file).startswith(f"{file}:1: block_size: must be a whole number")
    assert refusal(environment={"HEADWAY_PORT": "x"}).startswith("HEADWAY_PORT: must be a whole")
    assert refusal({"port": "70000"}) == "--port: must be from 0 to 65535, got 70000"
    assert refusal({"write_timeout": "nan"}).startswith("--write-timeout: must be a number")
    assert refusal({"dtype": "int3"}).startswith("--dtype: must be one of auto, float32")
    assert refusal({"max_model_len": "long"}).startswith("--max-model-len: must be 'auto' or")


def test_an_unknown_key_or_variable_is_refused_with_a_guess(tmp_path: Path) -> None:
    file = written(tmp_path, "blocksize: 16")
    assert refusal(file=file) == f"{file}:1: blocksize: is not a setting; did you mean block_size?"
    message = refusal(environment={"HEADWAY_MAX_NUM_SEQ": "4"})
    assert message == "HEADWAY_MAX_NUM_SEQ: is not a setting; did you mean HEADWAY_MAX_NUM_SEQS?"


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("a = [", "x.toml", "x.toml: Invalid value"),
        ("a = 1\nb = ?\n", "x.toml", "x.toml:2: Invalid value"),
        ("a: [", "x.yaml", "x.yaml:1: while parsing"),
        ("- 1", "x.yaml", "x.yaml:1: must hold keys and values"),
        ("a: 1", "x.ini", "x.ini: must end in .toml, .yaml or .yml"),
        ("\n!!python/object:os.system {}", "x.yaml", "x.yaml:2: could not determine"),
        ("port: 1\nseed: \0", "x.yaml", "x.yaml:2: has a character"),
        ("port: 1\nseed: !!int x", "x.yaml", "x.yaml:2: this is no int"),
        ("port: 1\n7: 1", "x.yaml", "x.yaml:2: has a key '7' that is no text"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, text: str, name: str, problem: str
) -> None:
    message = refusal(file=written(tmp_path, text, name))
    assert problem in message.removeprefix("--config ")
    assert "\n" not in message


def test_a_missing_file_is_named() -> None:
    assert "cannot be read: No such file" in refusal(file=Path("/nowhere/a.yaml"))


def test_variables_of_kubernetes_and_of_tests_are_left_alone() -> None:
    environment = {
        "HEADWAY_PORT": "tcp://10.0.0.1:8000",
        "HEADWAY_SERVICE_HOST": "10.0.0.1",
        "HEADWAY_SERVICE_PORT": "8000",
        "HEADWAY_SERVICE_PORT_HTTP": "8000",
        "HEADWAY_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "HEADWAY_PORT_8000_TCP_ADDR": "10.0.0.1",
        "HEADWAY_TEST_MODEL": "x",
        "PATH": "/bin",
    }
    assert merge({}, environment, None) == Settings()


def test_keys_are_never_repeated_in_a_message(tmp_path: Path) -> None:
    file = written(tmp_path, "api_key: {secret: sk-MARK-7Q}")
    assert "sk-MARK-7Q" not in refusal(file=file)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_a_field_of_its_section_and_reads_its_default(option: Option) -> None:
    fields = {field.name for field in msgspec.structs.fields(STRUCTS[option.section])}
    assert option.field in fields
    default = default_of(option)
    if default not in (None, ()):
        assert option.read(default) == default
        assert option.read(str(default)) == default
        settings = merge({option.key: default}, {}, None)
        assert settings == Settings()


def test_every_setting_has_an_option() -> None:
    sections = {field.name for field in msgspec.structs.fields(RateLimitSettings)}
    sections |= {"jwt", "prices", "routes"}
    internal = {"model", "upstream", *STRUCTS, *sections} | {
        *("heartbeat_s", "tick_s", "backoff_first_s", "backoff_limit_s"),
        *("healthy_after_s", "stop_grace_s", "routes"),
        *("jwt", "prices", "tenants", "file"),
        *("redis_prefix", "redis_timeout", "outage_share", "reserve_tokens"),
        *("metrics_by_tenant", "default", "route"),
    }
    declared = {(option.section, option.field) for option in OPTIONS}
    for section, struct in STRUCTS.items():
        for field in msgspec.structs.fields(struct):
            assert (section, field.name) in declared or field.name in internal, field.name


@pytest.mark.parametrize(
    ("text", "value"),
    [("512M", 512 * 2**20), ("2G", 2**31), ("1.5GiB", 3 * 2**29), ("1kb", 1024), ("77", 77)],
)
def test_sizes_are_read_in_powers_of_1024(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize("text", ["", "G", "-1", "0", "1X", "1e9", "NaN", 0, True, None, 1.5])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        size(text)


def test_switches_read_the_usual_words() -> None:
    assert switch("On") is True
    assert switch("no") is False
    with pytest.raises(ValueError, match="must be true or false"):
        switch("maybe")


@given(st.sampled_from(OPTIONS), st.one_of(st.text(), st.integers(), st.floats(), st.booleans()))
def test_any_value_is_read_or_refused_by_name(option: Option, value: object) -> None:
    try:
        option.read(value)
    except ValueError:
        assert refusal({option.key: value}).startswith(f"--{option.name}: must be")
    else:
        assert isinstance(merge({option.key: value}, {}, None), Settings)


@pytest.mark.parametrize(("value", "read"), [(0, 0), ("0", 0), (" 0 ", 0), ("2K", 2048), (7, 7)])
def test_some_sizes_may_be_nothing(value: object, read: int) -> None:
    assert size_or_none(value) == read


@pytest.mark.parametrize("value", [False, -1, "", "none", 0.5])
def test_what_is_no_size_and_not_nothing_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        size_or_none(value)


def test_limits_and_prices_are_sections_of_the_file_and_a_flag_may_name_another_redis(
    tmp_path: Path,
) -> None:
    file = written(
        tmp_path,
        "rate_limits:\n"
        "  redis_url: redis://one\n"
        "  tenants: {acme: {requests_per_minute: 60}}\n"
        "prices: {currency: EUR, models: {m: {prompt: 0.15, completion: 2}}}\n",
    )
    settings = merge({}, {}, str(file))
    assert settings.rate_limits.redis_url == "redis://one"
    assert settings.rate_limits.tenants == {"acme": Limits(requests_per_minute=60)}
    assert settings.prices.models["m"].prompt == Decimal("0.15")
    settings = merge({}, {"HEADWAY_REDIS_URL": "redis://two"}, str(file))
    assert settings.rate_limits.redis_url == "redis://two"
    assert settings.rate_limits.tenants == {"acme": Limits(requests_per_minute=60)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port: 1\nrate_limits: {reserve_tokens: 0}", r":2: rate_limits.reserve_tokens: must be"),
        ("rate_limits: {default: {rpm: 1}}", r":1: rate_limits.default"),
        ("prices: {models: {m: {prompt: -1, completion: 0}}}", r":1: prices.models.m.prompt"),
    ],
)
def test_what_is_wrong_in_limits_or_prices_is_named_with_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in refusal(file=written(tmp_path, text))
