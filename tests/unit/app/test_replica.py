import subprocess
import sys

import msgspec
import pytest

from headway.app.replica import load
from headway.core.base.errors import StartError
from headway.service.wire.spec import Launch
from tests.fault.scripted import SPEC

WITH_TORCH = Launch(
    spec=msgspec.structs.replace(SPEC, executor="torch"),
    commands_address="ipc:///tmp/c",
    reports_address="ipc:///tmp/r",
)


def test_without_torch_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headway.app.torch_replica", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(StartError) as caught:
        load(WITH_TORCH, lambda progress: None)
    assert caught.value.message == (
        "the engine needs torch, which cannot be imported; "
        "install it with: pip install 'headway[torch]'"
    )


def test_a_missing_module_of_our_own_is_not_blamed_on_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "headway.app.torch_replica", None)
    with pytest.raises(ImportError):
        load(WITH_TORCH, lambda progress: None)


@pytest.mark.parametrize("given", [b"", b"hello, engine\n"])
def test_startup_config_01_started_by_hand_it_says_who_starts_it(given: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headway.app.replica"], input=given, capture_output=True, check=False
    )
    assert ended.returncode == 2
    [line] = ended.stderr.decode().splitlines()
    assert line.startswith("headway.app.replica is started by `headway serve`, not by hand: ")
