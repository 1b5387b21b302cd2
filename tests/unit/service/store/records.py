"""Records of requests for tests, with defaults for what does not matter."""

from typing import Any

from headway.core.base.errors import StoreUnavailable
from headway.core.base.units import Seconds
from headway.core.messages.record import RequestRecord, Route
from headway.service.store.usage_memory import MemoryUsage

NOON = 1_796_040_000.0  # 2026-11-30 12:00 UTC


def record(request_id: str = "r1", **fields: Any) -> RequestRecord:
    """A request that was answered completely."""
    given: dict[str, Any] = {
        "id": request_id,
        "shown_id": f"shown-{request_id}",
        "gateway": "g1",
        "tenant": "acme",
        "key_id": "k1",
        "endpoint": "chat_completions",
        "slo_class": "standard",
        "route": Route(asked="m", model="m"),
        "began": NOON,
        "took_s": 1.5,
        "first_token_s": 0.25,
        "outcome": "ok",
        "finish": "stop",
        "is_stream": True,
        "num_choices": 1,
        "max_tokens": 20,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 7,
        "sent_tokens": 7,
        "queue_s": 0.125,
        "prefill_s": 0.125,
        "decode_s": 1.0,
        "device_s": 0.5,
        "num_chunks": 1,
        "miss_reason": "differs",
        "cost": 30,
    }
    return RequestRecord(**(given | fields))


class MoodyStore(MemoryUsage):
    """A store that is away while it is told to be, and that refuses some records."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.refuses: set[str] = set()
        self.batches: list[int] = []

    def add(self, records: Any) -> None:
        """Keep them, or do not."""
        if self.is_away:
            raise StoreUnavailable("the database does not answer", Seconds(2.0))
        if self.refuses & {each.id for each in records}:
            raise ValueError("a value that cannot be kept")
        self.batches.append(len(records))
        super().add(records)
