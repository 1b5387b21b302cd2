"""Several models in the settings: by flags, in the environment, in a file."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from headway.app import cli
from headway.app.settings import Settings, merge, merge_models
from headway.core.base.errors import InvalidSetting

YAML = """
max_num_seqs: 4
max_model_len: 512
models:
  - {model: a.gguf, served-model-name: [small, s]}
  - model: b.gguf
    served_model_name: large
    max-model-len: 1024
    quantization: int8
    kv-cache-memory-bytes: 64M
    load: demand
    idle-unload: 600
    load-wait: 20
"""
TOML = """
max_num_seqs = 4
max_model_len = 512
[[models]]
model = "a.gguf"
served-model-name = ["small", "s"]
[[models]]
model = "b.gguf"
served_model_name = "large"
max-model-len = 1024
quantization = "int8"
kv-cache-memory-bytes = "64M"
load = "demand"
idle-unload = 600
load-wait = 20
"""


def refused(
    flags: dict[str, object] | None = None,
    environment: dict[str, str] | None = None,
    file: Path | None = None,
) -> str:
    with pytest.raises(InvalidSetting) as caught:
        merge_models(flags or {}, environment or {}, str(file) if file else None)
    return caught.value.message


def written(folder: Path, text: str, name: str = "headway.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def check_two(models: tuple[Settings, ...]) -> None:
    small, large = models
    assert (small.model, large.model) == ("a.gguf", "b.gguf")
    assert (small.served_model_name, large.served_model_name) == (("small", "s"), ("large",))
    assert (small.engine.max_model_len, large.engine.max_model_len) == (512, 1024)
    assert small.engine.max_num_seqs == large.engine.max_num_seqs == 4
    assert large.engine.kv_cache_memory_bytes == 64 * 2**20
    assert large.cpu.quantization == "int8"
    assert (small.residency.load, small.residency.idle_unload) == ("start", 0.0)
    assert (large.residency.load, large.residency.idle_unload) == ("demand", 600.0)
    assert large.residency.load_wait == 20.0


@pytest.mark.parametrize(("name", "text"), [("h.yaml", YAML), ("h.toml", TOML)])
def test_a_file_lists_models_that_have_the_rest_in_common(
    tmp_path: Path, name: str, text: str
) -> None:
    check_two(merge_models({}, {}, str(written(tmp_path, text, name))))


def test_flags_say_the_same_behind_the_file_of_each_model() -> None:
    large = (
        "b.gguf,served-model-name=large,max-model-len=1024,quantization=int8,"
        "kv-cache-memory-bytes=64M,load=demand,idle-unload=600,load-wait=20"
    )
    small = "a.gguf,served-model-name=small,served-model-name=s"
    flags = {"model": [small, large], "max_num_seqs": "4", "max_model_len": "512"}
    check_two(merge_models(flags, {}, None))


def test_models_of_the_flags_replace_those_of_the_environment_and_those_the_file_s(
    tmp_path: Path,
) -> None:
    file = str(written(tmp_path, YAML))
    environment = {"HEADWAY_MODEL": "e.gguf,load=demand"}
    (from_environment,) = merge_models({}, environment, file)
    assert from_environment.model == "e.gguf"
    assert from_environment.residency.load == "demand"
    assert from_environment.engine.max_num_seqs == 4
    flagged = merge_models({"model": ["x.gguf", "y.gguf"]}, environment, file)
    assert [settings.model for settings in flagged] == ["x.gguf", "y.gguf"]


def test_the_built_in_model_may_be_one_of_several() -> None:
    built_in, other = merge_models({"model": [",load=demand", "x.gguf"]}, {}, None)
    assert (built_in.model, built_in.residency.load) == (None, "demand")
    assert other.model == "x.gguf"


def test_a_path_with_commas_is_a_path() -> None:
    (one,) = merge_models({"model": ["/models/a,b.gguf"]}, {}, None)
    assert one.model == "/models/a,b.gguf"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.gguf,lod=demand", "--model a.gguf: lod: is not a setting; did you mean load?"),
        ("a.gguf,port=1", "--model a.gguf: port: belongs to the whole server; set it beside"),
        ("a.gguf,load=never", "--model a.gguf: load: must be one of start, demand; got 'never'"),
        ("a.gguf,load=start,load=demand", "--model a.gguf: load: is given twice"),
        ("a.gguf,idle-unload=-1", "--model a.gguf: idle-unload: must be a number of seconds"),
        ("", "--model: must be text"),
    ],
)
def test_a_wrong_part_of_a_flag_is_named(text: str, said: str) -> None:
    assert refused({"model": [text]}).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: 5", "models: must be a list of models, got 5"),
        ("models: []", "models: must be a list of models, got []"),
        ("models: [{model: a}, 7]", "models[1]: must hold keys and values, got 7"),
        ("models: [{model: a}, {idle_unlod: 7}]", "models[1].idle_unlod: is not a setting; did"),
        ("models: [{host: x}]", "models[0].host: belongs to the whole server"),
        ("models: [{max-model-len: x}]", "models[0].max-model-len: must be 'auto' or a number"),
        ("model: a\nmodels: [{model: b}]", "model: stands beside models; put it into that list"),
    ],
)
def test_a_wrong_entry_of_a_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    line = text.count("\n", 0, text.index(said[:5])) + 1
    assert refused(file=file).startswith(f"{file}:{line}: {said}")


def test_a_name_for_all_of_several_models_is_refused(tmp_path: Path) -> None:
    flags: dict[str, object] = {"model": ["a", "b"], "served_model_name": ["x"]}
    assert refused(flags).startswith("served_model_name: names one model, and there are several")


def test_commands_of_one_model_refuse_several(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="2 models are set, and this command takes one"):
        merge({}, {}, str(written(tmp_path, YAML)))


def test_serve_takes_models_by_place_and_by_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def serve(models: Sequence[Settings], again: object = None) -> int:
        seen.extend(settings.model for settings in models)
        return 0

    monkeypatch.setattr(cli, "serve", serve)
    assert cli.main(["serve", "a.gguf", "b.gguf", "--model", "c.gguf", "--model", "d.gguf"]) == 0
    assert seen == ["a.gguf", "b.gguf", "c.gguf", "d.gguf"]
