"""Models behind other servers, as a file names them."""

from pathlib import Path

import pytest

from headway.app.config import summary
from headway.app.fleet import check_names
from headway.app.settings import merge_models
from headway.app.upstreams import open_upstreams
from headway.core.base.errors import InvalidSetting
from headway.service.upstream.settings import Kind

FILE = """\
models:
  - model: small.gguf
  - served_model_name: [big, large]
    upstream:
      url: [http://a:1, http://b:1]
      kind: vllm
      model: org/big
      timeouts: {first_token: 30}
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "headway.yaml"
    path.write_text(text)
    return str(path)


def test_an_entry_with_upstream_is_a_model_like_any_other(tmp_path: Path) -> None:
    small, big = merge_models({}, {}, written(tmp_path, FILE))
    assert small.upstream is None
    assert big.upstream is not None
    assert big.upstream.names == ("big", "large")
    assert big.upstream.urls == ("http://a:1", "http://b:1")
    assert big.upstream.kind is Kind.VLLM
    assert big.upstream.timeouts.first_token == 30
    (opened,) = open_upstreams((small, big))
    assert (opened.place, opened.key, opened.tls) == (1, None, None)
    assert "model at http://a:1, http://b:1 (vllm): big, large" in summary("", (small, big))


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ("{upstream: {url: http://a:1}}", "models[0].upstream.name"),
        ("{upstream: {name: m}}", "models[0].upstream.url"),
        ("{upstream: {name: m, url: http://a:1, kind: other}}", "models[0].upstream.kind"),
        ("{upstream: {name: m, url: http://a:1, ulr: x}}", "ulr"),
        ("{upstream: {name: m, url: http://a:1, timeouts: {total: x}}}", "upstream.timeouts.total"),
        ("{upstream: {name: m, url: http://a:1}, load: demand}", "models[0].load"),
        ("{served_model_name: m, upstream: {name: m, url: http://a:1}}", "upstream.name"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_key(
    tmp_path: Path, entry: str, where: str
) -> None:
    path = written(tmp_path, f"models:\n  - {entry}\n")
    with pytest.raises(InvalidSetting) as raised:
        merge_models({}, {}, path)
    assert raised.value.message.startswith(f"{path}:2: models[0]")
    assert where in raised.value.message


def test_two_models_never_share_a_name(tmp_path: Path) -> None:
    text = "models:\n" + "  - {upstream: {name: m, url: http://a:1}}\n" * 2
    models = merge_models({}, {}, written(tmp_path, text))
    with pytest.raises(InvalidSetting, match="'m' is a name of another upstream"):
        check_names([], [each.upstream for each in models if each.upstream is not None])


def test_a_key_that_is_not_set_is_named_with_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "models:\n  - {upstream: {name: m, url: http://a:1, api_key_env: HEADWAY_TEST_NONE}}\n"
    models = merge_models({}, {}, written(tmp_path, text))
    with pytest.raises(InvalidSetting) as raised:
        open_upstreams(models)
    assert raised.value.param == "models[0].upstream.api_key_env"
    monkeypatch.setenv("HEADWAY_TEST_NONE", "sk-1")
    assert open_upstreams(models)[0].key == "sk-1"


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    text = "models:\n  - {upstream: {name: m, url: https://a, tls: {ca_file: /none.pem}}}\n"
    where = r"models\[0\]\.upstream\.tls"
    with pytest.raises(InvalidSetting, match=rf"{where}\.ca_file: /none.pem cannot be read"):
        open_upstreams(merge_models({}, {}, written(tmp_path, text)))
    (tmp_path / "none.pem").write_text("no certificate")
    file = written(tmp_path, text.replace("/none.pem", f"{tmp_path}/none.pem"))
    with pytest.raises(InvalidSetting, match=f"{where}: its files hold no certificates"):
        open_upstreams(merge_models({}, {}, file))
