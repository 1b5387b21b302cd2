"""The ledger of a gateway: noted when the kernel has it, asked after it is in the store."""

import asyncio
import os
from operator import methodcaller
from pathlib import Path

import pytest

from headway.core.base.errors import StartError
from headway.core.messages.record import RequestRecord
from headway.core.tenancy.ledger_metrics import LEDGER_CATALOGUE
from headway.service.gateway.books import NoPrices
from headway.service.gateway.ledger import MemoryLedger, SpoolLedger, instance_name, open_ledger
from headway.service.observe.prometheus import Exporter
from headway.service.store.ledger_settings import LedgerSettings
from headway.service.store.slots import Progress
from headway.service.store.spool import left_in
from tests.unit.service.gateway.fakes import run, until
from tests.unit.service.store.records import MoodyStore, record


class Unsent:
    """Bytes of a connection that the kernel has not taken."""

    def __init__(self, num: int = 0) -> None:
        self.num = num

    def __call__(self) -> int:
        return self.num


def opened(root: Path, store: MoodyStore) -> SpoolLedger:
    return open_ledger(LedgerSettings(), store, root, "g", NoPrices())


def progress(root: Path) -> dict[str, Progress | None]:
    (folder,) = root.iterdir()
    return {each.record.id: each.progress for each in left_in(folder) if each.record is not None}


def test_tokens_count_as_sent_once_the_kernel_has_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        root, unsent = tmp_path / "spool", Unsent()
        ledger = opened(root, MoodyStore())
        ledger.opened(record("a", outcome="lost"))
        ledger.giving("a", 2)
        assert progress(root) == {"a": Progress(0, 2)}
        ledger.gave("a", 2, unsent)
        assert progress(root) == {"a": Progress(2, 2)}
        unsent.num = 100  # until the end of the turn
        ledger.giving("a", 3)
        ledger.gave("a", 3, unsent)
        assert progress(root) == {"a": Progress(2, 3)}
        unsent.num = 0
        await asyncio.sleep(0)
        assert progress(root) == {"a": Progress(3, 3)}
        ledger.closed(record("a"), Unsent())
        assert progress(root) == {"a": Progress(3, 3)}
        await asyncio.sleep(0)
        assert progress(root) == {"a": None}
        await ledger.close()

    run(scenario())


def test_a_count_never_goes_back_where_an_older_one_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        root, unsent = tmp_path / "spool", Unsent(100)
        ledger = opened(root, MoodyStore())
        ledger.opened(record("a", outcome="lost"))
        for num_tokens in (1, 2):
            ledger.giving("a", num_tokens)
            ledger.gave("a", num_tokens, unsent)
            unsent.num = 0
        await asyncio.sleep(0)
        assert progress(root) == {"a": Progress(2, 2)}
        await ledger.close()

    run(scenario())


def test_what_a_slow_reader_has_not_taken_does_not_count_until_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        root, unsent = tmp_path / "spool", Unsent(100)
        ledger = opened(root, MoodyStore())
        ledger.opened(record("slow", outcome="lost"))
        ledger.opened(record("quick", outcome="lost"))
        ledger.giving("slow", 3)
        ledger.gave("slow", 3, unsent)
        ledger.closed(record("slow"), unsent)
        ledger.closed(record("quick"), Unsent())
        await until(lambda: progress(root)["quick"] is None)
        assert progress(root)["slow"] == Progress(0, 3)
        unsent.num = 0
        await until(lambda: progress(root)["slow"] is None)
        await ledger.close()

    run(scenario())


def test_a_question_finds_what_has_just_happened(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = opened(tmp_path / "spool", MoodyStore())
        for name in ("a", "b"):
            ledger.closed(record(name), Unsent())
            await asyncio.sleep(0)
            found = await ledger.ask(methodcaller("find", name))
            assert found is not None
        await ledger.close()

    run(scenario())


def test_a_record_that_is_complete_later_is_kept_then_and_at_the_latest_at_the_end(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        store, complete = MoodyStore(), asyncio.Event()
        ledger = opened(tmp_path / "spool", store)

        async def rest() -> RequestRecord:
            await complete.wait()
            return record("late")

        ledger.closes(rest)
        await asyncio.sleep(0)
        closing = asyncio.create_task(ledger.close())
        await asyncio.sleep(0)
        complete.set()
        await closing
        assert store.find("late") is not None
        assert list((tmp_path / "spool").iterdir()) == []

    run(scenario())


def test_every_metric_of_the_ledger_is_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = MoodyStore()
        ledger = opened(tmp_path / "spool", store)
        ledger.closed(record("a"), Unsent())
        await asyncio.sleep(0)
        await ledger.ask(lambda store: store.find("a"))
        exporter = Exporter(LEDGER_CATALOGUE, {})
        exporter.add_source(ledger.samples)
        text = exporter.render(None)[0].decode()
        for metric in LEDGER_CATALOGUE:
            assert f"\n{metric.name}" in text, metric.name
        assert 'headway_ledger_records_total{state="written"} 1.0' in text
        assert 'headway_ledger_records_total{state="dropped"} 0.0' in text
        await ledger.close()

    run(scenario())


def test_the_ledger_in_memory_keeps_and_counts() -> None:
    async def scenario() -> None:
        ledger = MemoryLedger()
        ledger.opened(record("a", outcome="lost"))
        ledger.giving("a", 1)
        ledger.gave("a", 1, Unsent())
        assert await ledger.ask(lambda store: store.find("a")) is None
        ledger.closed(record("a"), Unsent())

        async def rest() -> RequestRecord:
            return record("b")

        ledger.closes(rest)
        await ledger.close()
        assert await ledger.ask(lambda store: store.find("a")) == record("a")
        assert await ledger.ask(lambda store: store.find("b")) == record("b")
        assert [sample.value for sample in ledger.samples()] == [2]

    run(scenario())


def test_a_folder_that_cannot_be_had_ends_the_start_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(StartError, match=str(tmp_path / "spool")):
        opened(tmp_path / "spool", MoodyStore())


def test_two_gateways_of_one_process_and_host_have_folders_of_their_own() -> None:
    names = {instance_name("a/b c") for _ in range(10)}
    assert len(names) == 10
    assert all(str(os.getpid()) in name and "/" not in name for name in names)
