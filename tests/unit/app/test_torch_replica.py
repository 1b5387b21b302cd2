import msgspec
import pytest

from headway.app.torch_replica import executor_settings, refuse_too_big
from headway.compute.gpu.runner.settings import (
    AttentionChoice,
    DeviceChoice,
    DtypeChoice,
    ExecutorSettings,
)
from headway.core.base.errors import InvalidSetting, NotEnoughMemory
from tests.fault.scripted import SPEC

GIB = 1024**3


def test_the_specs_words_become_the_executors_choices() -> None:
    spec = msgspec.structs.replace(
        SPEC, dtype="bfloat16", device="cuda", threads=3, attention="reference"
    )
    assert executor_settings(spec) == ExecutorSettings(
        dtype=DtypeChoice.BFLOAT16,
        device=DeviceChoice.CUDA,
        threads=3,
        attention=AttentionChoice.REFERENCE,
    )


@pytest.mark.parametrize("name", ["dtype", "device", "attention"])
def test_startup_config_01_an_unknown_word_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"--{name}: must be one of .*, got 'float8'"):
        executor_settings(msgspec.structs.replace(SPEC, **{name: "float8"}))


def test_startup_config_01_weights_that_cannot_fit_are_refused_before_they_are_read() -> None:
    shapes = [(1024, 1024, 512), (1024, 512)]  # a little over 2 GiB in float32
    refuse_too_big(shapes, DtypeChoice.FLOAT32, 3 * GIB)
    refuse_too_big(shapes, DtypeChoice.BFLOAT16, 2 * GIB)
    refuse_too_big(shapes, DtypeChoice.FLOAT32, None)  # unknown: try
    with pytest.raises(NotEnoughMemory) as caught:
        refuse_too_big(shapes, DtypeChoice.AUTO, 2 * GIB)
    assert caught.value.message == (
        "the weights take 2.0 GiB as 32-bit numbers, but only 2.0 GiB of memory are free; "
        "use a smaller model or --dtype bfloat16, which takes half"
    )
    with pytest.raises(NotEnoughMemory, match=r"use a smaller model$"):
        refuse_too_big(shapes, DtypeChoice.BFLOAT16, GIB)
