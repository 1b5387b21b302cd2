"""What the engine and the API need from a tokenizer."""

from typing import Protocol


class Encodes(Protocol):
    """Text to ids."""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`.

        `add_special` puts the model's own BOS first, if the file says so and the text
        does not already begin with it. `parse_special` reads control tokens written out
        in the text as such (for rendered templates); without it they are plain text.
        """
        ...


class Decodes(Protocol):
    """Ids to bytes, and which of them end a text: all that an engine needs."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence (end of text, end of turn)."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token stands for, also for control tokens; may be half a character."""
        ...

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, which skip_special_tokens leaves out of the text."""
        ...


class Tokenizer(Encodes, Decodes, Protocol):
    """Both ways.

    All methods are safe to call from several threads at once.
    """

    @property
    def vocab_size(self) -> int:
        """Number of ids, those without a token included."""
        ...

    def min_tokens(self, text: str) -> int:
        """A number of ids that `encode` makes of `text` at least, found without encoding it.

        From the longest token there is; 0 where a text may have bytes that give no token.
        """
        ...
