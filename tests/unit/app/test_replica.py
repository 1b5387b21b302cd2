import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import platformdirs
import pytest

from headway.app import replica
from headway.app.replica import kernels_below, load, wants_torch
from headway.core.base.errors import ExecutorUnsuitable, InvalidSetting, ModelFileError, StartError
from headway.core.engine.settings import EngineSettings
from headway.core.messages.health import LoadProgress
from headway.service.replica.server import Loaded
from headway.service.wire.spec import Launch, ReplicaSpec
from tests.fault.scripted import SPEC


def spec(
    executor: str = "auto", *, device: str = "cpu", dtype: str = "auto", block_size: int = 16
) -> ReplicaSpec:
    return msgspec.structs.replace(
        SPEC,
        executor=executor,
        device=device,
        dtype=dtype,
        engine=EngineSettings(block_size=block_size),
    )


def launch(executor: str) -> Launch:
    return Launch(
        spec=spec(executor), commands_address="ipc:///tmp/c", reports_address="ipc:///tmp/r"
    )


def nothing(progress: LoadProgress) -> None:
    """Progress that nobody reads."""


@pytest.mark.parametrize(
    ("asked", "torch"),
    [
        (spec(), False),
        (spec("cpu"), False),
        (spec("torch"), True),
        (spec("torch", device="cuda", dtype="bfloat16"), True),
        (spec(device="cuda"), True),
        (spec(dtype="float32"), True),
        (spec(dtype="bfloat16"), True),
        (spec(block_size=8), True),
        (spec(block_size=1), True),
        (spec(block_size=64), False),
        (spec("cpu", block_size=8), False),  # the executor says what is wrong
    ],
)
def test_torch_computes_only_where_the_settings_ask_for_it(asked: ReplicaSpec, torch: bool) -> None:
    assert wants_torch(asked) is torch


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "auto"), ("cpu", "float32")])
def test_startup_config_01_the_cpu_executor_with_settings_of_torch_is_refused(
    device: str, dtype: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        wants_torch(spec("cpu", device=device, dtype=dtype))
    assert caught.value.message == (
        "--executor: cpu computes on CPUs, with the weights as the file has them; it does not go "
        f"with --device {device} --dtype {dtype}; leave those out, or use torch"
    )


class Loaders:
    """Stands for both ways to load; the first one may find the model unsuitable."""

    def __init__(self, problem: StartError | None = None) -> None:
        self.called: list[str] = []
        self.problem = problem
        self.found = Loaded.__new__(Loaded, None, None, None)  # type: ignore[arg-type]

    def numba(self, launch: Launch, progress: object) -> Loaded:
        self.called.append("numba")
        if self.problem is not None:
            raise self.problem
        return self.found

    def torch(self, launch: Launch, progress: object) -> Loaded:
        self.called.append("torch")
        return self.found


def replaced(loaders: Loaders, monkeypatch: pytest.MonkeyPatch) -> Loaders:
    monkeypatch.setattr(replica, "_load_with_numba", loaders.numba)
    monkeypatch.setattr(replica, "_load_with_torch", loaders.torch)
    return loaders


@pytest.mark.parametrize(
    ("executor", "called"), [("auto", "numba"), ("cpu", "numba"), ("torch", "torch")]
)
def test_one_executor_loads_the_model(
    executor: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = replaced(Loaders(), monkeypatch)
    assert load(launch(executor), nothing) is loaders.found
    assert loaders.called == [called]


def asked_of_the_cpu_executor(executor: str, **more: str) -> Launch:
    plain = launch(executor)
    return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, **more))


def test_startup_config_01_torch_refuses_what_only_the_cpu_executor_can_do() -> None:
    with pytest.raises(InvalidSetting, match=r"^--cpu-isa: avx2 is for the CPU executor"):
        load(asked_of_the_cpu_executor("torch", cpu_isa="avx2"), nothing)
    with pytest.raises(InvalidSetting, match=r"^--kv-cache-dtype: int8 is for the CPU executor"):
        load(asked_of_the_cpu_executor("torch", kv_cache_dtype="int8"), nothing)


UNSUITABLE = ExecutorUnsuitable("m.gguf", "heads of 24 values; use --executor torch")


def test_a_model_that_the_kernels_do_not_fit_is_given_to_torch_with_a_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaders = replaced(Loaders(UNSUITABLE), monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert load(launch("auto"), nothing) is loaders.found
    assert loaders.called == ["numba", "torch"]
    (record,) = caplog.records
    assert record.message == "torch_instead_of_cpu_kernels"
    assert vars(record)["reason"] == UNSUITABLE.message


def test_the_cpu_executor_is_not_replaced_where_it_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaders = replaced(Loaders(UNSUITABLE), monkeypatch)
    with pytest.raises(ExecutorUnsuitable):
        load(launch("cpu"), nothing)
    assert loaders.called == ["numba"]


def test_a_damaged_model_is_not_given_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = replaced(Loaders(ModelFileError("m.gguf", "is damaged")), monkeypatch)
    with pytest.raises(ModelFileError, match="is damaged"):
        load(launch("auto"), nothing)
    assert loaders.called == ["numba"]


def test_kernels_are_kept_below_the_cache_folder() -> None:
    assert kernels_below("/somewhere") == Path("/somewhere/kernels")
    assert kernels_below(None) == platformdirs.user_cache_path("headway") / "kernels"


def test_without_torch_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headway.app.torch_replica", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(StartError) as caught:
        load(launch("torch"), nothing)
    assert caught.value.message == (
        "the engine needs torch, which cannot be imported; "
        "install it with: pip install 'headway[torch]'"
    )


def test_a_missing_module_of_our_own_is_not_blamed_on_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "headway.app.torch_replica", None)
    with pytest.raises(ImportError):
        load(launch("torch"), nothing)


@pytest.mark.parametrize("given", [b"", b"hello, engine\n"])
def test_startup_config_01_started_by_hand_it_says_who_starts_it(given: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headway.app.replica"], input=given, capture_output=True, check=False
    )
    assert ended.returncode == 2
    [line] = ended.stderr.decode().splitlines()
    assert line.startswith("headway.app.replica is started by `headway serve`, not by hand: ")


def test_such_a_model_is_not_given_to_torch_when_the_cpu_executor_was_asked_for_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaders = replaced(Loaders(UNSUITABLE), monkeypatch)
    with pytest.raises(ExecutorUnsuitable):
        load(asked_of_the_cpu_executor("auto", cpu_isa="avx2"), nothing)
    assert loaders.called == ["numba"]
