"""What a journey notes on its way for the ledger's record, beside what the meter measures."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.base.metrics import Outcome
from headway.service.wire.transport import Mailbox

USER_BYTES = 8  # of its hash
ITS_OWN = frozenset({Outcome.OK, Outcome.CANCELLED})  # ends that are nobody else's fault


class Made(NamedTuple):
    """Tokens that engines have worked on, and what they cost."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of them
    completion_tokens: int = 0
    cost: int = 0  # micros


NOTHING = Made()


@dataclass(slots=True)
class Notes:
    """One request's notes."""

    is_known: bool = False  # who asks; what nobody is known to have asked is not recorded
    user: str = ""
    is_stream: bool = False
    replica: str = ""
    failovers: int = 0
    limit: str = ""  # that refused it
    giving: int = 0  # tokens that were handed to the connection, or are being
    sent: int = 0  # that were
    told: int | None = None  # completion tokens as the answer's own usage has them
    took_s: float | None = None  # set at its end
    models: Sequence[str] = ()  # that it may be sent to, where that is not only its route
    is_sized: bool = False
    is_open_ended: bool = False  # its client asks for no length
    dropped: Made = NOTHING  # for an answer that the client did not get, as another one went on
    # Of cancelled engine requests: their ends will come here.
    boxes: Mapping[str, Mailbox] = field(default_factory=dict)


def hash_of_user(user: str | None, tenant: str) -> str:
    """A name for the client's `user` that tells its requests from others', and not who it is.

    Keyed by the tenant, so that two tenants' records cannot be joined by it.
    """
    if not user:
        return ""
    key = hashlib.blake2b(tenant.encode(), digest_size=32, person=b"headway.user").digest()
    return hashlib.blake2b(user.encode(), digest_size=USER_BYTES, key=key).hexdigest()


def billed(outcome: Outcome, completion_tokens: int, sent_tokens: int) -> int:
    """Completion tokens that are paid for.

    What was computed for a client that left is paid; what our own failure kept from it is not.
    """
    return completion_tokens if outcome in ITS_OWN else sent_tokens
