"""Names of a text's beginning."""

from headway.core.route.text_prefix import BLOCK_BYTES, MAX_BLOCKS, text_names


def test_only_whole_blocks_have_a_name() -> None:
    assert text_names([b"x" * (BLOCK_BYTES - 1)]) == ()
    assert len(text_names([b"x" * BLOCK_BYTES])) == 1
    assert len(text_names([b"x" * (3 * BLOCK_BYTES + 1)])) == 3


def test_texts_share_the_names_of_what_they_share() -> None:
    begin = b"x" * (2 * BLOCK_BYTES)
    one = text_names([begin, b"a" * BLOCK_BYTES])
    two = text_names([begin, b"b" * BLOCK_BYTES])
    assert one[:2] == two[:2]
    assert one[2] != two[2]


def test_what_differs_in_a_block_differs_in_every_later_one() -> None:
    tail = b"t" * (3 * BLOCK_BYTES)
    one = text_names([b"a" * BLOCK_BYTES, tail])
    two = text_names([b"b" * BLOCK_BYTES, tail])
    assert not set(one) & set(two)


def test_how_a_text_is_cut_into_parts_changes_nothing() -> None:
    text = bytes(range(256)) * 8
    assert text_names([text]) == text_names([text[i : i + 7] for i in range(0, len(text), 7)])


def test_texts_of_two_salts_have_no_name_in_common() -> None:
    text = [b"x" * (4 * BLOCK_BYTES)]
    assert not set(text_names(text, b"a")) & set(text_names(text, b"b"))


def test_what_comes_late_in_a_long_text_is_not_named() -> None:
    assert len(text_names([b"x" * BLOCK_BYTES] * (MAX_BLOCKS + 50))) == MAX_BLOCKS
