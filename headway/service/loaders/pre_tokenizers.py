"""How text is cut into words before byte-level BPE, by the name that GGUF gives.

A vocabulary is only right together with the cut it was trained with, so an unknown name is
refused instead of guessed. The patterns are facts of the model families that use them.
"""

from collections.abc import Callable, Mapping

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = _CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _TAIL
QWEN2 = _CONTRACTIONS + _WORD + r"|\p{N}" + _TAIL
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _gpt2()])


def _pattern(pattern: str) -> Callable[[], PreTokenizer]:
    def build() -> PreTokenizer:
        split = Split(Regex(pattern), behavior="isolated")
        return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


PRE_TOKENIZERS: Mapping[str, Callable[[], PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "olmo": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": _single_digits,
    "llama-bpe": _pattern(LLAMA3),
    "llama3": _pattern(LLAMA3),
    "llama-v3": _pattern(LLAMA3),
    "qwen2": _pattern(QWEN2),
    "stablelm2": _pattern(QWEN2),
    "tekken": _pattern(TEKKEN),
}

# Families whose vocabulary is looked up whole before merging, and that begin with BOS
# even where the file does not say so.
WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
