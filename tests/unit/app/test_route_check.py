"""Routes of a file: messages name its line, and a model without a name waits for the start."""

from pathlib import Path

import pytest

from headway.app.settings import merge_models
from headway.core.base.errors import InvalidSetting

ROUTES = """\
routes:
  names:
    - name: chat
      versions: {stable: a, preview: b}
      split:
        stable: 1
        preview: -5
"""


def read(folder: Path, text: str) -> Path:
    file = folder / "headway.yaml"
    file.write_text(text)
    return file


def test_a_table_that_cannot_be_is_told_with_file_and_line(tmp_path: Path) -> None:
    models = (
        "models: [{model: a.gguf, served_model_name: a}, {model: b.gguf, served_model_name: b}]\n"
    )
    file = read(tmp_path, models + ROUTES)
    with pytest.raises(InvalidSetting) as caught:
        merge_models({}, {}, str(file))
    assert caught.value.message == (
        f"{file}:8: routes.names[0].split.preview: must be a weight >= 0, got -5"
    )


def test_a_field_of_the_wrong_type_is_told_with_file_and_line(tmp_path: Path) -> None:
    file = read(tmp_path, "routes:\n  names:\n    - {name: 5}\n")
    with pytest.raises(InvalidSetting, match=r"headway.yaml:3: routes\.names\[0\]\.name: expected"):
        merge_models({}, {}, str(file))


def test_routes_over_models_that_their_files_name_are_checked_at_the_start(tmp_path: Path) -> None:
    file = read(tmp_path, "model: a.gguf\n" + ROUTES)
    (settings,) = merge_models({}, {}, str(file))
    assert settings.routes is not None
    assert settings.routes.names[0].split == {"stable": 1.0, "preview": -5.0}


def test_a_pool_behind_another_server_may_stand_in_routes(tmp_path: Path) -> None:
    cloud = "models:\n  - upstream: {name: cloud, url: 'http://127.0.0.1:9'}\n"
    file = read(tmp_path, cloud + "routes: {names: [{name: chat, pool: cloud}]}\n")
    (settings,) = merge_models({}, {}, str(file))
    assert settings.routes is not None
    read(tmp_path, cloud + "routes: {names: [{name: chat, pool: cluod}]}\n")
    with pytest.raises(InvalidSetting, match=r"headway.yaml:3: routes\.names\[0\]\.pool: there is"):
        merge_models({}, {}, str(file))
