"""Records of tenants and their keys, and what makes a key good.

A key is `hw-<id>-<secret>`. The id is random and public: it finds the record, and stands in
lists, logs and the ledger. Of the secret only a salted scrypt hash is kept.
"""

import base64
import hashlib
import hmac
import re
from typing import NamedTuple

import msgspec

from headway.core.base.errors import InvalidRequest
from headway.core.tenancy.limits import BOUNDS, UNLIMITED, Limits
from headway.core.tenancy.tenant import TENANT_NAME, SloClass, Tenant

ID_BYTES = 10  # 80 bits, 16 characters
SECRET_BYTES = 25  # 200 bits, 40 characters
SALT_BYTES = 16
KEY_RANDOM_BYTES = ID_BYTES + SECRET_BYTES + SALT_BYTES
KEY = re.compile(r"hw-([a-z2-7]{16})-([a-z2-7]{40})")
KEY_ID = re.compile(r"[a-z2-7]{16}")
BEGINS_AS_KEY = re.compile(r"hw-([a-z2-7]{16})(-.*)?", re.DOTALL)
SHOWN = "hw-{}-..."  # a key as it may be shown again

# 4 MiB and about 13 ms on one core. The secrets are 200 random bits, so that even a fast hash could
# not be searched; more would make every client wait after a gateway's start, when each key is
# checked slowly once.
SCRYPT_LOG_N = 12
SCRYPT_R = 8
SCRYPT_P = 1
DIGEST_BYTES = 32
SCHEME = "scrypt"
HASH = re.compile(rf"{SCHEME}\$(\d{{1,2}})\$(\d{{1,3}})\$(\d{{1,3}})\$([^$]+)\$([^$]+)")

MAX_SHOWN = 10**18  # of a number that an error repeats
MAX_LABEL = 128
MAX_MODELS = 256
MAX_MODEL_NAME = 256


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as it is stored; times are seconds since 1970."""

    name: str
    slo_class: SloClass = SloClass.STANDARD
    weight: float = 1.0
    limits: Limits = UNLIMITED
    models: tuple[str, ...] = ()
    may_degrade: bool = True
    is_disabled: bool = False
    created: float
    changed: float

    def tenant(self) -> Tenant:
        """As the rest of the gateway knows it."""
        return Tenant(
            name=self.name,
            slo_class=self.slo_class,
            weight=self.weight,
            limits=self.limits,
            models=self.models,
            may_degrade=self.may_degrade,
        )


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is stored; its secret is not in here."""

    id: str
    tenant: str
    hash: str  # `hashed`
    label: str = ""
    created: float
    expires: float | None = None  # not good from then on
    revoked: float | None = None
    replaced_by: str = ""  # id of the key it was rotated to


class NewKey(NamedTuple):
    """A key just made: the one time that its text is known."""

    id: str
    text: str
    hash: str


class PresentedKey(NamedTuple):
    """The parts of a key that somebody sends."""

    id: str
    secret: str


def new_key(random: bytes, log_n: int = SCRYPT_LOG_N) -> NewKey:
    """A key out of KEY_RANDOM_BYTES fresh random bytes; takes as long as a slow check."""
    assert len(random) == KEY_RANDOM_BYTES, len(random)
    key_id = _letters(random[:ID_BYTES])
    secret = _letters(random[ID_BYTES : ID_BYTES + SECRET_BYTES])
    salt = random[ID_BYTES + SECRET_BYTES :]
    return NewKey(key_id, f"hw-{key_id}-{secret}", hashed(secret, salt, log_n))


def read_key(text: str) -> PresentedKey | None:
    """The parts of a key, or None for what has not the form of one."""
    found = KEY.fullmatch(text)
    return None if found is None else PresentedKey(found[1], found[2])


def id_in(text: str) -> str | None:
    """The id, where somebody gave more of a key than that; None for everything else."""
    found = BEGINS_AS_KEY.fullmatch(text)
    return None if found is None else found[1]


def hashed(secret: str, salt: bytes, log_n: int = SCRYPT_LOG_N) -> str:
    """scrypt$log2(N)$r$p$salt$digest, salt and digest in base64; slow on purpose."""
    digest = _scrypt(secret, salt, log_n, SCRYPT_R, SCRYPT_P)
    parts = (str(log_n), str(SCRYPT_R), str(SCRYPT_P), _base64(salt), _base64(digest))
    return "$".join((SCHEME, *parts))


def matches(secret: str, stored: str) -> bool:
    """Whether that hash is of this secret; slow, and as slow for a wrong one."""
    found = HASH.fullmatch(stored)
    if found is None:
        raise ValueError("a stored hash of a key is not of a form that this version knows")
    log_n, r, p = int(found[1]), int(found[2]), int(found[3])
    salt, digest = base64.b64decode(found[4]), base64.b64decode(found[5])
    return hmac.compare_digest(_scrypt(secret, salt, log_n, r, p), digest)


def fault_of(key: KeyRecord, tenant: TenantRecord | None, now: float) -> str | None:
    """Why a key with the right secret is not good now; None: it is."""
    if key.revoked is not None:
        return "The API key was revoked."
    if key.expires is not None and now >= key.expires:
        return "The API key has expired."
    if tenant is None:
        return "The API key is of no tenant."
    if tenant.is_disabled:
        return "The tenant of this API key is disabled."
    return None


def checked_tenant(record: TenantRecord) -> TenantRecord:
    """The record itself; raises InvalidRequest, naming the field, for what cannot be."""
    if not TENANT_NAME.fullmatch(record.name):
        raise InvalidRequest(
            f"A tenant's name has 1 to 64 characters A-Z a-z 0-9 . _ - and no others; got "
            f"{record.name[:80]!r}.",
            param="name",
        )
    if not 0.001 <= record.weight <= 1000:
        raise InvalidRequest(f"A weight is 0.001 to 1000, got {record.weight:g}.", param="weight")
    for field, most in BOUNDS.items():
        value = getattr(record.limits, field)
        if value is not None and not 0 <= value <= most:
            raise InvalidRequest(
                f"{field} is a whole number of 0 to {most}, or null for none; got "
                f"{value if abs(value) < MAX_SHOWN else 'one that is too long to show'}.",
                param=f"limits.{field}",
            )
    if len(record.models) > MAX_MODELS or not all(
        0 < len(name) <= MAX_MODEL_NAME for name in record.models
    ):
        raise InvalidRequest(
            f"models is a list of at most {MAX_MODELS} names of 1 to {MAX_MODEL_NAME} characters.",
            param="models",
        )
    return record


def checked_label(label: str) -> str:
    """The label itself; raises InvalidRequest for one that would not fit on a line."""
    if len(label) > MAX_LABEL or not (label.isprintable()):
        raise InvalidRequest(
            f"A label has at most {MAX_LABEL} printable characters.", param="label"
        )
    return label


def _scrypt(secret: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    n = 1 << log_n
    room = 128 * r * (n + p + 2)
    return hashlib.scrypt(
        secret.encode("ascii"), salt=salt, n=n, r=r, p=p, maxmem=room, dklen=DIGEST_BYTES
    )


def _letters(raw: bytes) -> str:
    return base64.b32encode(raw).decode("ascii").lower()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
