"""Names of a text's beginning, for servers whose token ids are not known here; see `index`.

A text is cut into blocks of equal length; each block's name depends on all before it and on whose
it is, as in a prefix cache over token ids.
"""

from collections.abc import Iterable
from hashlib import blake2b

BLOCK_BYTES = 512  # about 128 tokens; a system prompt that matters is several of these
MAX_BLOCKS = 128  # of one text: 64 KiB, after which nothing more is told apart
NAME_BYTES = 8


def text_names(parts: Iterable[bytes], salt: bytes = b"") -> tuple[bytes, ...]:
    """The names of all whole blocks of the joined parts, first to last.

    salt  texts with different salts never have a name in common
    """
    most = BLOCK_BYTES * MAX_BLOCKS
    text = bytearray()
    for part in parts:
        text += part
        if len(text) >= most:
            break
    name = blake2b(salt, digest_size=NAME_BYTES).digest()
    names = []
    for start in range(0, min(len(text), most) - BLOCK_BYTES + 1, BLOCK_BYTES):
        block = text[start : start + BLOCK_BYTES]
        name = blake2b(name + block, digest_size=NAME_BYTES).digest()
        names.append(name)
    return tuple(names)
