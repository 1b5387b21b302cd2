"""Tenants, routes, prices and limits of a configuration file, each refused with its line."""

from pathlib import Path

import pytest

from headway.app.cli import main
from headway.app.sections import keys_of
from headway.app.settings import merge_models
from headway.core.base.errors import InvalidSetting
from headway.core.tenancy.limits import Limits
from headway.core.tenancy.tenant import SloClass

GOOD = """
models:
  - {model: a.gguf, served_model_name: [small]}
  - {model: b.gguf, served_model_name: [large]}
routes:
  default: chat
  names:
    - {name: chat, versions: {stable: small, preview: large}, split: {stable: 9, preview: 1}}
tenants:
  - name: acme
    class: vip
    limits: {requests_per_minute: 60, tokens_per_minute: 90000}
    models: [chat]
    keys_env: [ACME_KEY]
  - {name: lab, class: internal, keys: [lab-key-1, lab-key-2]}
prices:
  currency: EUR
  models:
    small: {prompt: 0.10, completion: 0.40}
rate_limits:
  default: {concurrent_requests: 8}
  reserve_tokens: 512
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "h.yaml"
    file.write_text(text)
    return file


def test_a_file_with_every_section_is_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY", "secret-of-acme")
    file = written(tmp_path, GOOD)
    settings, _ = merge_models({}, {}, str(file))
    assert settings.routes is not None
    assert settings.rate_limits.default == Limits(concurrent_requests=8)
    acme, lab = (entry.tenant() for entry in settings.tenants)
    assert (acme.slo_class, acme.models) == (SloClass.VIP, ("chat",))
    assert acme.limits == Limits(requests_per_minute=60, tokens_per_minute=90000)
    keys = keys_of(settings.tenants)
    assert keys == [("secret-of-acme", acme), ("lab-key-1", lab), ("lab-key-2", lab)]
    assert main(["config", "check", str(file)]) == 0
    said = capsys.readouterr().out
    assert "  routes: chat" in said
    assert "  tenants: 2 in the file" in said
    assert "  prices in EUR: small" in said


def test_a_flag_goes_before_its_section(tmp_path: Path) -> None:
    file = written(tmp_path, "rate_limits: {redis_url: 'redis://a', reserve_tokens: 7}\n")
    (settings,) = merge_models({"redis_url": "redis://b"}, {}, str(file))
    assert settings.rate_limits.redis_url == "redis://b"
    assert settings.rate_limits.reserve_tokens == 7


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        (
            "class: vip",
            "class: gold",
            11,
            "tenants[0].class: must be one of vip, standard, internal",
        ),
        ("name: lab", "name: acme", 15, "tenants[1].name: 'acme' is there twice"),
        ("name: acme", "name: a b", 10, "tenants[0].name: must be 1 to 64 characters"),
        ("90000", "-1", 12, "tenants[0].limits.tokens_per_minute: must be from 0 to"),
        ("keys_env", "key_env", 14, "tenants[0].key_env: is not a setting; did you mean keys_env?"),
        ("prompt: 0.10", "prompt: -1", 19, "prices.models.small.prompt: must be from 0 to"),
        ("512", "0", 22, "rate_limits.reserve_tokens: must be at least 1"),
        ("stable: small", "stable: tiny", 8, "routes.names[0].versions"),
        ("    small: {p", "    smal: {p", 19, "prices.models.smal: is the name of no model"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, line: int, said: str
) -> None:
    assert old in GOOD
    file = written(
        tmp_path, GOOD.replace(old, new, 1).replace("    keys_env: [ACME_KEY]", "    keys: [k]")
    )
    assert main(["config", "check", str(file)]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"headway config: {file}:{line}: {said}"), message


def test_a_variable_that_is_not_set_is_named_and_no_key_is_shown(tmp_path: Path) -> None:
    (settings, _) = merge_models({}, {}, str(written(tmp_path, GOOD)))
    with pytest.raises(InvalidSetting, match=r"tenants\[0\].keys_env\[0\]: ACME_KEY is not set"):
        keys_of(settings.tenants, {})
    with pytest.raises(InvalidSetting) as caught:
        keys_of(settings.tenants, {"ACME_KEY": "lab-key-1"})
    assert "lab-key" not in caught.value.message


def test_the_commented_file_of_the_repository_is_understood(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY", "k1")
    monkeypatch.setenv("BATCH_KEY", "k2")
    monkeypatch.setenv("VLLM_KEY", "k3")
    file = Path(__file__).parents[3] / "deploy" / "headway.yaml"
    assert main(["config", "check", str(file)]) == 0
    assert "  tenants: 2 in the file" in capsys.readouterr().out
