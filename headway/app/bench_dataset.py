"""What a benchmark sends: prompts of a given length, or recorded conversations."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Protocol

import msgspec

from headway.core.base.errors import InvalidSetting

# Of a vocabulary that is not known: past the control tokens and bytes that come first, and
# below the size of any vocabulary in use (the smallest common one has 32,000 ids).
DEFAULT_IDS = range(1000, 30_000)

# ShareGPT conversations outside these lengths are left out, as vLLM's benchmark does, so that
# figures can be compared. In tokens.
MIN_TOKENS, MAX_PROMPT, MAX_TOTAL = 4, 1024, 2048

NUM_WORDS = 512  # of the list that text prompts are made from
TRIES = 200


class Codec(Protocol):
    """The served model's tokenizer, as far as a benchmark needs it."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, without any special token."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        ...

    def plain_ids(self) -> Sequence[int]:
        """All ids but control tokens."""
        ...


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request to send; `content` is text, or token ids where the endpoint takes them."""

    content: str | tuple[int, ...]
    num_tokens: int | None  # None: not known before the server says it
    max_tokens: int


class RandomShape(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of random prompts, in tokens."""

    input_len: int
    output_len: int
    prefix_len: int = 0  # shared by all prompts, and in front of input_len
    range_ratio: float = 0.0  # lengths vary evenly by this share either way

    def draw(self, rng: Random) -> tuple[int, int]:
        """An input and an output length, each at least 1."""
        return self._vary(self.input_len, rng), self._vary(self.output_len, rng)

    def _vary(self, length: int, rng: Random) -> int:
        spread = int(length * self.range_ratio)
        return max(1, rng.randint(length - spread, length + spread))


def random_ids(shape: RandomShape, count: int, ids: Sequence[int], rng: Random) -> list[Prompt]:
    """Prompts of token ids drawn from `ids`: their length is exact for every model."""
    prefix = tuple(rng.choices(ids, k=shape.prefix_len))
    prompts = []
    for _ in range(count):
        length, max_tokens = shape.draw(rng)
        content = prefix + tuple(rng.choices(ids, k=length))
        prompts.append(Prompt(content=content, num_tokens=len(content), max_tokens=max_tokens))
    return prompts


def random_text(shape: RandomShape, count: int, codec: Codec, rng: Random) -> list[Prompt]:
    """Prompts of words whose length under `codec` is exact, for endpoints that take no ids."""
    words = single_token_words(codec, rng)
    prefix = exact_text(shape.prefix_len, "", words, codec, rng)
    prompts = []
    for _ in range(count):
        length, max_tokens = shape.draw(rng)
        content = exact_text(shape.prefix_len + length, prefix, words, codec, rng)
        prompts.append(
            Prompt(content=content, num_tokens=len(codec.encode(content)), max_tokens=max_tokens)
        )
    return prompts


def single_token_words(codec: Codec, rng: Random) -> list[str]:
    """Words of ASCII letters that are one token after a space."""
    ids = list(codec.plain_ids())
    rng.shuffle(ids)
    words: list[str] = []
    for token_id in ids:
        word = codec.decode([token_id]).strip()
        if len(word) > 1 and word.isascii() and word.isalpha() and word not in words:
            if len(codec.encode("a " + word)) == len(codec.encode("a")) + 1:
                words.append(word)
            if len(words) == NUM_WORDS:
                break
    if not words:
        raise InvalidSetting(
            "--tokenizer", "has no token that is a word; use --backend openai, which sends ids"
        )
    return words


def exact_text(length: int, prefix: str, words: list[str], codec: Codec, rng: Random) -> str:
    """Text of `length` tokens that starts with `prefix`; words may merge, hence the loop."""
    lead = [prefix] if prefix else []
    own = rng.choices(words, k=max(0, length - len(codec.encode(prefix))))
    for _ in range(TRIES):
        text = " ".join(lead + own)
        missing = length - len(codec.encode(text))
        if missing == 0:
            return text
        if missing > 0:
            own += rng.choices(words, k=missing)
        elif own:
            del own[missing:]
            # A first word of several tokens could jump over the length for ever.
            own[:1] = rng.choices(words, k=1) if own else []
        else:
            break
    raise InvalidSetting("--tokenizer", f"no text of exactly {length} tokens was found")


def read_sharegpt(path: Path) -> list[tuple[str, str]]:
    """First question and answer of each conversation of a ShareGPT file."""
    try:
        records = msgspec.json.decode(path.read_bytes(), type=list[_Conversation])
    except OSError as error:
        raise InvalidSetting("--dataset-path", f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidSetting("--dataset-path", f"{path} is not ShareGPT JSON: {error}") from error
    pairs = []
    for record in records:
        turns = record.conversations
        if len(turns) >= 2 and turns[0].value and turns[1].value:
            pairs.append((turns[0].value, turns[1].value))
    return pairs


def sharegpt_prompts(
    pairs: list[tuple[str, str]],
    count: int,
    codec: Codec | None,
    output_len: int | None,
    rng: Random,
) -> list[Prompt]:
    """`count` prompts out of recorded conversations, repeated when there are too few.

    The answer asked for is as long as the recorded one, or `output_len`. Without a codec
    lengths are not known, so that nothing is left out and `output_len` is required.
    """
    if codec is None and output_len is None:
        raise InvalidSetting(
            "--tokenizer", "is needed to measure answers; or give --sharegpt-output-len"
        )
    pairs = list(pairs)
    rng.shuffle(pairs)
    prompts: list[Prompt] = []
    for question, answer in pairs:
        if len(prompts) == count:
            break
        if (prompt := _sharegpt_prompt(question, answer, codec, output_len)) is not None:
            prompts.append(prompt)
    if not prompts and count > 0:
        raise InvalidSetting("--dataset-path", "has no conversation of a usable length")
    return [prompts[i % len(prompts)] for i in range(count)]


def _sharegpt_prompt(
    question: str, answer: str, codec: Codec | None, output_len: int | None
) -> Prompt | None:
    if codec is None:
        return Prompt(content=question, num_tokens=None, max_tokens=output_len or 1)
    num_tokens = len(codec.encode(question))
    wanted = len(codec.encode(answer)) if output_len is None else output_len
    too_short = num_tokens < MIN_TOKENS or (output_len is None and wanted < MIN_TOKENS)
    if too_short or num_tokens > MAX_PROMPT or num_tokens + wanted > MAX_TOTAL:
        return None
    return Prompt(content=question, num_tokens=num_tokens, max_tokens=wanted)


class _Turn(msgspec.Struct, frozen=True):
    value: str = ""


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[_Turn] = []
