"""Names for the content of a block: a chain of cryptographic hashes.

The name of a block covers its own tokens and everything before it, and whose they are.
Every field has a tag and a length of its own, so that fields of different kinds cannot run
into each other, and tokens have a fixed width. Python's own hash is never used: it is
predictable, and it differs between processes.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 32


def root(model: str, salt: bytes, *, adapter: str = "") -> bytes:
    """The chain's start: blocks are shared only under the same model, adapter and salt."""
    state = blake2b(digest_size=DIGEST_BYTES, person=b"headway-kv-root")
    for tag, field in ((b"m", model.encode()), (b"a", adapter.encode()), (b"s", salt)):
        state.update(tag + len(field).to_bytes(8, "little") + field)
    return state.digest()


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Name of the block that holds `tokens` right after the block named `parent`."""
    state = blake2b(parent, digest_size=DIGEST_BYTES, person=b"headway-kv-block")
    state.update(array("q", tokens).tobytes())
    return state.digest()
