"""The served model's tokenizer, as a benchmark reads it."""

from pathlib import Path
from random import Random

import pytest

from headway.app.bench_dataset import RandomShape, random_text
from headway.app.bench_tokenizer import load_codec
from headway.core.base.errors import ModelFileError


def test_a_model_files_own_tokenizer_makes_texts_of_exact_length(smollm2_path: str) -> None:
    codec = load_codec(Path(smollm2_path))
    assert codec.encode("Hello, world") == [19556, 28, 905]
    assert codec.decode([19556, 28, 905]) == "Hello, world"
    assert min(codec.plain_ids()) == 17, "the first 17 are control tokens"
    shape = RandomShape(input_len=100, output_len=1, prefix_len=20)
    prompts = random_text(shape, 3, codec, Random(0))
    assert [len(codec.encode(str(prompt.content))) for prompt in prompts] == [120] * 3


def test_a_model_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"odd\.gguf"):
        load_codec(path)
