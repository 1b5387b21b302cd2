"""The tokenizer of an answer that no model has made."""

from headway.core.text.tokenizer import Tokenizer


class NoTokens:
    """Knows no token: the answer is text alone."""

    vocab_size = 0
    eos_ids: tuple[int, ...] = ()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """None."""
        return []

    def min_tokens(self, text: str) -> int:
        """None."""
        return 0

    def token_bytes(self, token_id: int) -> bytes:
        """Of no token."""
        return b""

    def is_special(self, token_id: int) -> bool:
        """There are none."""
        return False


NO_TOKENS: Tokenizer = NoTokens()
