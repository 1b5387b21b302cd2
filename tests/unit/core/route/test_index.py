from headway.core.route.index import CHUNK, MOST_CHUNKS, PrefixIndex, chunk_names


def names_of(*chunks: int, salt: bytes = b"") -> tuple[bytes, ...]:
    return chunk_names("m", salt, [chunk for chunk in chunks for _ in range(CHUNK)])


def test_only_full_chunks_are_named_and_a_name_covers_all_before_it() -> None:
    assert chunk_names("m", b"", [1] * (CHUNK - 1)) == ()
    one, two = names_of(1), names_of(1, 2)
    assert two[:1] == one
    assert names_of(3, 2)[1] != two[1]
    assert names_of(1, salt=b"s") != one
    assert chunk_names("other", b"", [1] * CHUNK) != one


def test_a_long_prompt_is_named_up_to_a_limit() -> None:
    assert len(chunk_names("m", b"", [0] * (CHUNK * MOST_CHUNKS * 2))) == MOST_CHUNKS


def test_the_longest_known_beginning_is_found() -> None:
    index = PrefixIndex(100)
    index.add("0", names_of(1, 2, 3))
    index.add("1", names_of(1))
    asked = names_of(1, 2, 4)
    assert [index.match(each, asked) for each in ("0", "1", "2")] == [2, 1, 0]
    assert index.match("0", ()) == 0


def test_what_was_used_longest_ago_is_forgotten_from_its_end() -> None:
    index = PrefixIndex(5)
    index.add("0", names_of(1, 2, 3))
    index.add("0", names_of(1, 7, 8, 9))
    assert index.match("0", names_of(1, 7, 8, 9)) == 4
    assert index.match("0", names_of(1, 2, 3)) == 2, "the last chunk went first"
    assert len(index) == 5
    index.add("0", names_of(4))
    assert index.match("0", names_of(1, 2, 3)) == 1


def test_the_index_never_outgrows_its_bound() -> None:
    index = PrefixIndex(10)
    for number in range(50):
        index.add("0", names_of(number, number + 1, number + 2))
        index.add("1", names_of(*range(number, number + 20)))
        assert len(index) <= 20


def test_a_forgotten_replica_holds_nothing() -> None:
    index = PrefixIndex(10)
    index.add("0", names_of(1))
    index.forget("0")
    index.forget("never seen")
    assert index.match("0", names_of(1)) == 0
    assert len(index) == 0
