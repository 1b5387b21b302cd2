"""The wheel has every file that the code reads, and nothing that only the repository needs."""

import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.unit.tools.test_repository_stands_alone import ROOT, tracked_files

BUILDS = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """Names in a wheel that is built from a copy of what is tracked."""
    tree = tmp_path_factory.mktemp("tree")
    for path in tracked_files():
        name = path.relative_to(ROOT)
        if name.parts[0] == "headway" or str(name) in NEEDED:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, tree / name)
    built = subprocess.run(
        [sys.executable, "-c", BUILDS, str(tree)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-2000:]
    with zipfile.ZipFile(tree / built.stdout.split()[-1]) as found:
        return frozenset(found.namelist())


def test_a_wheel_has_every_tracked_file_of_the_package(wheel: frozenset[str]) -> None:
    tracked = {str(path.relative_to(ROOT)) for path in tracked_files()}
    of_package = {name for name in tracked if name.startswith("headway/")}
    in_wheel = {name for name in wheel if name.startswith("headway/")}
    assert in_wheel == of_package
    for name in (
        "headway/py.typed",
        "headway/core/route/size_model.json",
        "headway/service/store/migrations/env.py",
        "headway/service/store/migrations/versions/r0001_accounts.py",
    ):
        assert name in in_wheel


def test_a_wheel_installs_nothing_beside_the_package(wheel: frozenset[str]) -> None:
    places = {name.partition("/")[0] for name in wheel}
    assert len(places) == 2
    assert {place for place in places if not place.endswith(".dist-info")} == {"headway"}
    licences = {name.rpartition("/")[2] for name in wheel if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}
