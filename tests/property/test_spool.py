"""Whatever happened before a gateway was killed, every request has one record afterwards."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headway.core.messages.usage import RecordQuery
from headway.service.store.drain import Drain, DrainNeeds
from headway.service.store.slots import Progress
from headway.service.store.spool import Spool
from headway.service.store.usage_memory import MemoryUsage
from tests.unit.service.store.records import record

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("open", "close", "give", "gave")), st.integers(0, 5)),
        st.tuples(st.sampled_from(("drain", "kill")), st.just(0)),
    ),
    max_size=60,
)
SEGMENT = 3000  # three or four frames


@dataclass
class Model:
    """What has to be true, in the simplest words."""

    num: int = 0
    open: dict[int, tuple[str, Progress]] = field(default_factory=dict)  # by the test's own number
    ended: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # outcome, sent, unsure


class Gateways:
    """One gateway after the other in one folder, over one store."""

    def __init__(self, root: Path) -> None:
        self.model = Model()
        self._root = root
        self._store = MemoryUsage(kept=100_000)
        self._num_started = 0
        self._start()

    def do(self, what: str, which: int) -> None:
        """One operation; what makes no sense now is left out."""
        known = self.model.open.get(which)
        if what == "open" and known is None:
            self.model.num += 1
            name = f"r{self.model.num}"
            self.model.open[which] = (name, Progress(0, 0))
            self.spool.opened(record(name, outcome="lost", completion_tokens=0, sent_tokens=0))
        elif what == "give" and known is not None:
            name, progress = known
            self.model.open[which] = (name, Progress(progress.sure, progress.given + 1))
            self.spool.give(name, progress.given + 1)
        elif what == "gave" and known is not None:
            name, progress = known
            self.model.open[which] = (name, Progress(progress.given, progress.given))
            self.spool.gave(name, progress.given)
        elif what == "close" and known is not None:
            name, progress = known
            del self.model.open[which]
            self.model.ended[name] = ("ok", progress.given, 0)
            self.spool.closed(record(name, sent_tokens=progress.given))
        elif what == "drain":
            assert self.drain.turn()
        elif what == "kill":
            self.kill()

    def kill(self) -> None:
        """The next gateway finds what this one left."""
        self.release()
        for name, progress in self.model.open.values():
            unsure = progress.given - progress.sure
            self.model.ended[name] = ("lost", progress.sure, unsure)
        self.model.open.clear()
        self._start()
        self.drain.take_over()

    def release(self) -> None:
        """What the kernel does for a process that is gone; its files stay."""
        assert self.spool._file is not None
        os.close(self.spool._file.descriptor)
        self.spool._slots.close()
        os.close(self.spool._lock_file)

    def check(self) -> None:
        """The store has exactly what has ended."""
        assert self.drain.turn()
        found = self._store.page(RecordQuery(limit=100_000)).records
        told = {each.id: (each.outcome, each.sent_tokens, each.unsure_tokens) for each in found}
        assert len(found) == len(told)
        assert told == self.model.ended
        assert [path.name for path in self._root.iterdir()] == [self.spool.folder.name]

    def _start(self) -> None:
        self._num_started += 1
        self.spool = Spool(self._root / f"g{self._num_started}", 1 << 20, SEGMENT)
        needs = DrainNeeds(self.spool, self._store, self._root, lambda *_: 0, lambda: 0.0)
        self.drain = Drain(needs)


@given(OPERATIONS)
def test_every_request_has_one_record_whatever_was_killed_when(
    operations: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        gateways = Gateways(Path(folder) / "spool")
        for what, which in operations:
            gateways.do(what, which)
        gateways.check()
        gateways.kill()
        gateways.check()
        gateways.release()
