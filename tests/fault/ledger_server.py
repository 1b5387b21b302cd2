"""A gateway with a ledger over an engine that counts: ledger_server.py DATA_DIR PORT STEP_S.

Every open request gets one token "x" a step, `max_tokens` of them. Prints a line once it serves.
"""

import asyncio
import sys
import time
from pathlib import Path

import uvloop

from headway.core.base.units import Seconds
from headway.core.engine.settings import EngineSettings
from headway.core.messages.path import (
    EngineRequest,
    Finished,
    FinishReason,
    Started,
    Tokens,
    Usage,
)
from headway.service.gateway.assemble import GatewayNeeds, assemble
from headway.service.gateway.books import NoLimits
from headway.service.gateway.encode import Encoder
from headway.service.gateway.journey import Books
from headway.service.gateway.ledger import open_ledger
from headway.service.gateway.lifecycle import HttpServer, StopSignals, bind
from headway.service.gateway.model import ServedModel
from headway.service.gateway.serving import ModelNeeds
from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.totals import PoolTotals
from headway.service.observe import log
from headway.service.observe.clock import SystemClock
from headway.service.openai.limits import ApiLimits
from headway.service.store.database import file_url, open_database
from headway.service.store.ledger_settings import LedgerSettings
from headway.service.store.usage import SqlUsage
from headway.service.wire.mailbox import RequestMailbox
from tests.unit.service.gateway.fakes import (
    CONTEXT,
    VOCAB,
    CharTokenizer,
    FakeReplica,
    JoiningTemplate,
)

PROMPT_COST, TOKEN_COST = 100, 1


class CountingEngine(FakeReplica):
    """A token a step for everybody, and an end that says how many it were."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self._made: dict[str, int] = {}

    def call(self, request: EngineRequest) -> RequestMailbox:
        """From the next step on."""
        box = super().call(request)
        self._made[request.id] = 0
        box.put(Started(request_id=request.id, at=Seconds(0.0), cached_tokens=0))
        return box

    def cancel(self, request_id: str) -> None:
        """It ends with what was made."""
        if request_id in self._made:
            self._end(request_id, FinishReason.CANCELLED)

    async def step(self) -> None:
        """Step for ever."""
        while True:
            for request_id in list(self._made):
                self._made[request_id] += 1
                num_wanted = self.requests[request_id].sampling.max_tokens
                is_last = self._made[request_id] >= num_wanted
                event = Tokens(
                    request_id=request_id,
                    choice=0,
                    token_ids=(5,),
                    text="x",
                    at=Seconds(0.0),
                    finish_reason=FinishReason.LENGTH if is_last else None,
                )
                self.boxes[request_id].put(event)
                if is_last:
                    self._end(request_id, FinishReason.LENGTH)
            await asyncio.sleep(self._step_s)

    def _end(self, request_id: str, reason: FinishReason) -> None:
        request, box = self.requests.pop(request_id), self.boxes.pop(request_id)
        usage = Usage(
            prompt_tokens=len(request.prompt), completion_tokens=self._made.pop(request_id)
        )
        box.put(Finished(request_id=request_id, reason=reason, usage=usage))


class Prices:
    """The same for every model."""

    def cost(self, model: str, prompt: int, cached: int, completion: int) -> int:
        """Micros."""
        return PROMPT_COST * prompt + TOKEN_COST * completion


async def main(data_dir: Path, port: int, step_s: float) -> None:
    """Serve until SIGTERM."""
    signals = StopSignals()
    signals.install()
    settings = GatewaySettings(port=port)
    database = open_database(file_url(data_dir / "headway.db"))
    prices, engine = Prices(), CountingEngine(step_s)
    store = SqlUsage(database)
    ledger = open_ledger(LedgerSettings(), store, data_dir / "spool", "g", prices)
    model = ServedModel(
        names=("m",), root="root", vocab_size=VOCAB, context_length=CONTEXT, created=1
    )
    encoder = Encoder(CharTokenizer(), JoiningTemplate(), 1)
    limits = EngineSettings(max_num_seqs=1000, max_waiting_requests=1000)
    parts = assemble(
        GatewayNeeds(
            settings=settings,
            api_limits=ApiLimits(),
            seed=1,
            models=[ModelNeeds(model, limits, encoder, engine, PoolTotals())],
            clock=SystemClock(),
            version="1",
            books=Books(NoLimits(), ledger, prices, time.time, "g"),
            keeper=ledger,
        )
    )
    listener = bind(settings)
    server = HttpServer(parts.gateway, settings, listener)
    stepping = asyncio.create_task(engine.step())
    serving = asyncio.create_task(server.run_until_stopped())
    while not server.started:
        await asyncio.sleep(0.01)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await signals.asked.wait()
    server.stop()
    await serving
    stepping.cancel()
    await ledger.close()
    encoder.close()
    database.close()


if __name__ == "__main__":
    log.configure("warning")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
