"""The header reader: what it reads, and that no file makes it fail in another way."""

import os
import struct
import time
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from gguf import GGUFReader, GGUFWriter

from headway.core.base.errors import ModelFileError
from headway.service.loaders.chat_template import ChatTemplate
from headway.service.loaders.gguf_header import MAX_ELEMENTS, read_header
from headway.service.loaders.model_files import open_model
from headway.service.loaders.tokenizer_files import build_tokenizer
from tests.unit.service.loaders.samples import replace, tiny, write

COUNTS = struct.Struct("<4sIQQ")


def raw(path: Path, body: bytes, *, keys: int = 1, tensors: int = 0, version: int = 3) -> str:
    path.write_bytes(COUNTS.pack(b"GGUF", version, tensors, keys) + body)
    return str(path)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def problem_of(path: str) -> str | None:
    try:
        model = open_model(path)
        ChatTemplate(model)
        build_tokenizer(model).encode("hello 1", add_special=True, parse_special=True)
    except ModelFileError as error:
        return error.message
    return None


def test_it_agrees_with_the_gguf_library(tmp_path: Path) -> None:
    def more(writer: GGUFWriter) -> None:
        writer.add_bool("x.bool", True)
        writer.add_array("x.bools", [True, False])
        writer.add_float64("x.double", 0.1)
        writer.add_int64("x.long", -(1 << 40))
        writer.add_array("x.floats", [0.5, -2.0])
        writer.add_array("x.texts", ["", "é世"])
        writer.add_uint8("x.byte", 255)

    path = tiny(tmp_path / "m.gguf", more)
    header, library = read_header(path), GGUFReader(path)
    assert {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in header.values.items()
    } == {
        key: field.contents()
        for key, field in library.fields.items()
        if not key.startswith("GGUF.")
    }
    assert [(t.name, t.shape, t.type_name, t.offset, t.num_bytes) for t in header.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in library.tensors
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (text("k") + struct.pack("<IQ", 8, 1 << 62), "a string of"),
        (text("k") + struct.pack("<IIQ", 9, 8, 1 << 62), "declares"),
        (text("k") + struct.pack("<IIQ", 9, 5, MAX_ELEMENTS + 1), "declares"),
        (text("k") + struct.pack("<IIQ", 9, 0, 1000), "declares 1000 elements"),
        (text("k") + struct.pack("<IIQ", 9, 9, 1), "array of arrays"),
        (text("k") + struct.pack("<I", 77), "value type 77"),
        (text("tokenizer.x") + struct.pack("<IQ", 8, 1) + b"\xff", "not UTF-8"),
        (struct.pack("<Q", 1 << 40), "a string of"),
        (text("k") + struct.pack("<II", 4, 1)[:-2], "cut short"),
    ],
)
def test_a_lying_size_is_refused_before_it_is_allocated(
    tmp_path: Path, body: bytes, said: str
) -> None:
    path = raw(tmp_path / "m.gguf", body)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=said) as caught:
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # the read buffer and little else
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(path)


def test_huge_counts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="over the limits"):
        read_header(raw(tmp_path / "m.gguf", b"", keys=1 << 60))
    with pytest.raises(ModelFileError, match="over the limits"):
        read_header(raw(tmp_path / "m.gguf", b"", tensors=1 << 60))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    one = text("k") + struct.pack("<II", 4, 1)
    with pytest.raises(ModelFileError, match="'k': stands in the file twice"):
        read_header(raw(tmp_path / "m.gguf", one + one, keys=2))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 a zip", "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1), "GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<I", 3), "cut short"),
    ],
)
def test_a_file_that_is_no_gguf_of_ours_is_named_so(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=said):
        read_header(str(path))


def test_what_is_not_a_file_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        read_header(str(tmp_path / "absent.gguf"))
    with pytest.raises(ModelFileError, match="is a directory"):
        read_header(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_header(str(tmp_path / "pipe"))
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_header("a\0b")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_header(str(tmp_path / ("x" * 300)))


@pytest.mark.parametrize(
    ("shape", "kind", "offset", "said"),
    [
        ((32,), 0, 0, "cut short"),
        ((32,), 999, 0, "tensor type 999"),
        ((31,), 3, 0, "multiple of 32 for Q4_1"),
        ((0,), 0, 0, "must not be 0"),
        ((32,), 0, 7, "not at a multiple of 32"),
        ((1 << 60, 1 << 60), 0, 0, "cut short"),
        ((1, 1, 1, 1, 1), 0, 0, "5 dimensions"),
        ((), 0, 0, "0 dimensions"),
    ],
)
def test_a_tensor_that_the_file_cannot_hold_is_named(
    tmp_path: Path, shape: tuple[int, ...], kind: int, offset: int, said: str
) -> None:
    body = text("w") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    path = raw(tmp_path / "m.gguf", body.ljust(64), keys=0, tensors=1)
    with pytest.raises(ModelFileError, match=said) as caught:
        read_header(path)
    assert "'w'" in caught.value.message


def test_a_file_without_its_last_byte_is_cut_short(tmp_path: Path) -> None:
    path = Path(tiny(tmp_path / "m.gguf"))
    last = read_header(str(path)).tensors[-1]
    path.write_bytes(path.read_bytes()[: last.offset + last.num_bytes - 1])
    with pytest.raises(ModelFileError, match="cut short, fetch it again"):
        open_model(str(path))


def test_a_wrong_alignment_is_refused(tmp_path: Path) -> None:
    def alignment(writer: GGUFWriter) -> None:
        writer.add_uint32("general.alignment", 32)

    path = write(tmp_path / "m.gguf", alignment, replace("general.alignment", 0))
    with pytest.raises(ModelFileError, match=r"general\.alignment"):
        read_header(path)


def test_every_cut_and_flip_gives_a_model_file_error_or_a_model(tmp_path: Path) -> None:
    sample = tiny(
        tmp_path / "whole.gguf",
        lambda writer: writer.add_chat_template(
            "{% for m in messages %}{{ m.content }}{% endfor %}"
        ),
        lambda writer: writer.add_bos_token_id(1),
    )
    whole = Path(sample).read_bytes()
    random = Random(2)
    target = tmp_path / "fuzzed.gguf"
    problems: list[str | None] = []
    for round_ in range(1500):
        content = bytearray(whole)
        if round_ % 3 == 0:
            del content[random.randrange(len(content)) :]
        for _ in range(random.choice((0, 1, 1, 2, 8)) if content else 0):
            place = random.randrange(min(len(content), 9000))
            flipped = content[place] ^ 1 << random.randrange(8)
            content[place] = random.choice((0, 1, 255, flipped))
        target.write_bytes(content)
        problems.append(problem_of(str(target)))
    assert problems.count(None) > 100
    assert len(problems) - problems.count(None) > 300
    assert not [problem for problem in problems if problem and "\n" in problem]


def test_the_built_in_model_opens_in_under_a_second(smollm2_path: str) -> None:
    started = time.process_time()
    model = open_model(smollm2_path)
    assert time.process_time() - started < 1.0
    assert model.weight_bytes == 96_576_768
    assert model.file_bytes == 98_362_432
    assert len(model.tensors) == 272
