import pytest

from headway.compute.cpu.conversion import packed_type, shared_type
from headway.compute.cpu.settings import Quantization
from headway.core.base.errors import InvalidSetting

FLOATS = ("F32", "F16", "BF16")
ALL = (*FLOATS, "Q8_0", "Q4_0", "Q4_1")


def made(name: str, asked: str, *, inputs: int = 64, is_head: bool = False) -> str:
    return packed_type(name, "blk.0.x.weight", inputs, Quantization(asked), is_head=is_head)


@pytest.mark.parametrize("is_head", [True, False])
def test_none_keeps_every_type(is_head: bool) -> None:
    assert [made(name, "none", is_head=is_head) for name in ALL] == list(ALL)


@pytest.mark.parametrize("is_head", [True, False])
def test_auto_keeps_blocks_and_takes_8_bits_for_floats(is_head: bool) -> None:
    assert {made(name, "auto", is_head=is_head) for name in FLOATS} == {"Q8_0"}
    assert [made(name, "auto", is_head=is_head) for name in ALL[3:]] == list(ALL[3:])


def test_int8_takes_8_bits_for_floats() -> None:
    assert {made(name, "int8") for name in (*FLOATS, "Q8_0")} == {"Q8_0"}


def test_int4_takes_4_bits_but_8_in_the_head() -> None:
    assert {made(name, "int4") for name in (*FLOATS, "Q8_0")} == {"Q4_1"}
    assert {made(name, "int4", is_head=True) for name in (*FLOATS, "Q8_0")} == {"Q8_0"}
    for name in ("Q4_0", "Q4_1"):
        assert {made(name, "int4", is_head=head) for head in (True, False)} == {name}


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K"])
def test_startup_config_01_8_bits_made_of_4_are_refused(name: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        made(name, "int8")
    assert caught.value.message == (
        "--quantization: int8 cannot add what the file has left out: its tensor blk.0.x.weight "
        f"is {name}, 4 bits; leave the option out, which uses the weights as they are"
    )


@pytest.mark.parametrize("asked", ["auto", "int8", "int4"])
def test_inputs_that_are_not_whole_groups_stay_as_they_are(asked: str) -> None:
    assert made("BF16", asked, inputs=40) == "BF16"


@pytest.mark.parametrize(
    ("name", "auto", "int4", "none"),
    [
        ("Q5_0", "Q8_0", "Q4_1", "Q8_0"),
        ("Q5_1", "Q8_0", "Q4_1", "F32"),
        ("Q4_K", "Q4_1", "Q4_1", "F32"),
        ("Q5_K", "Q8_0", "Q4_1", "F32"),
        ("Q6_K", "Q8_0", "Q4_1", "F32"),
    ],
)
def test_types_that_no_kernel_reads_become_the_nearest(
    name: str, auto: str, int4: str, none: str
) -> None:
    assert [made(name, each, inputs=256) for each in ("auto", "int4", "none")] == [auto, int4, none]
    in_head = "Q4_1" if name == "Q4_K" else "Q8_0"
    assert {made(name, each, inputs=256, is_head=True) for each in ("auto", "int4")} == {in_head}


@pytest.mark.parametrize(
    ("names", "asked", "want"),
    [
        (("Q4_1", "Q4_1"), "auto", "Q4_1"),
        (("Q4_1", "Q8_0"), "auto", "Q8_0"),
        (("Q4_1", "Q4_0"), "int4", "Q8_0"),
        (("Q4_1", "Q8_0"), "none", "F32"),
        (("Q8_0", "BF16"), "auto", "F32"),
        (("F32", "F32"), "none", "F32"),
    ],
)
def test_matrices_that_share_an_input_share_a_type(
    names: tuple[str, ...], asked: str, want: str
) -> None:
    assert shared_type(names, Quantization(asked)) == want
