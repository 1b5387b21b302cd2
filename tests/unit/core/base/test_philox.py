import pytest

from headway.core.base.philox import philox4x32, uniform

ONES = 0xFFFFFFFF
# Known answers published with the reference implementation (Random123, kat_vectors).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (ONES, ONES, ONES, ONES),
        (ONES, ONES),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_words_equal_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], want: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == want


def test_a_draw_depends_on_each_of_its_three_arguments() -> None:
    draws = {
        uniform(seed, choice, position)
        for seed in (0, 1, 2**32, 2**64 - 1)
        for choice in (0, 1)
        for position in (0, 1, 2**32)
    }
    assert len(draws) == 4 * 2 * 3
    assert uniform(3, 1, 4) == uniform(3, 1, 4)


def test_draws_are_uniform_in_the_unit_interval() -> None:
    draws = [uniform(seed, 0, position) for seed in range(20) for position in range(500)]
    assert all(0.0 <= draw < 1.0 for draw in draws)
    counts = [sum(tenth / 10 <= draw < (tenth + 1) / 10 for draw in draws) for tenth in range(10)]
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 27.9  # chi-square, p = 0.001
