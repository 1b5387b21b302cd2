"""What is known of a model without reading a weight."""

import re
from enum import IntEnum
from typing import NamedTuple

from headway.core.base.model_card import ModelCard
from headway.service.loaders.gguf_header import TensorEntry
from headway.service.loaders.sampling_defaults import SamplingDefaults

SPACE = "\u2581"  # SentencePiece writes a space as this
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """What a vocabulary entry is, in GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(NamedTuple):
    """The tokenizer part of a model file, as it stands there."""

    kind: str  # "gpt2": byte-level BPE; "llama": SentencePiece BPE
    pre: str | None  # name of the pre-tokenizer, for "gpt2"
    tokens: tuple[str, ...]
    types: tuple[int, ...]  # TokenType of each token
    scores: tuple[float, ...] | None
    merges: tuple[str, ...]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None  # end of a turn, where it differs from the end of a text
    eom_id: int | None  # end of a message that waits for a tool
    pad_id: int | None
    unknown_id: int | None
    add_bos: bool | None  # None: the file does not say
    add_space_prefix: bool  # for "llama": a space before the first word
    end_ids: tuple[int, ...] = ()  # that end a text by generation_config.json
    pipeline: str | None = None  # a tokenizer.json of which only words and rules are left
    strips_left: frozenset[int] = frozenset()  # these take white space before them
    strips_right: frozenset[int] = frozenset()  # and these after them

    def text_of(self, token_id: int | None) -> str:
        """The token as the file writes it; empty for None."""
        return "" if token_id is None else self.tokens[token_id]

    def stripped(self, text: str, before: int | None, after: int | None) -> str:
        """A text without the white space that the tokens before and after it take."""
        text = text.lstrip() if before in self.strips_right else text
        return text.rstrip() if after in self.strips_left else text


class ModelFile(NamedTuple):
    """All that can be known of a model file, or folder, without reading a weight."""

    path: str
    card: ModelCard
    vocabulary: Vocabulary
    chat_template: str | None  # Jinja source
    tensors: tuple[TensorEntry, ...]
    file_bytes: int  # of all files with weights
    sampling: SamplingDefaults = SamplingDefaults()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as they lie in the file."""
        return sum(tensor.num_bytes for tensor in self.tensors)
