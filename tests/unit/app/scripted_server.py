"""`headway serve` whose engine is a script: python -m tests.unit.app.scripted_server MODE ...

MODE is ready (answers at 20 tokens a second, as many as `max_tokens`), loading (never gets
ready) or broken (the first start fails, as that of a model whose file is called broken does in
every mode). What follows is headway's own command line.
"""

import asyncio
import sys
from typing import Any

import msgspec

from headway.app import engine
from headway.app.cli import main
from headway.core.base.errors import StartError
from headway.core.messages.health import LoadProgress, ReplicaHello
from headway.core.messages.path import EngineRequest
from headway.service.wire.transport import ReplicaState
from tests.unit.service.gateway.fakes import HELLO, FakeReplica

TOKEN_S = 0.05


class ScriptedSupervisor(FakeReplica):
    """Stands in for the Supervisor of one engine process."""

    mode = "ready"

    def __init__(self, spec: Any, settings: Any, clock: Any, observers: Any) -> None:
        super().__init__()
        self.observers = observers
        self.path = spec.model_path
        self.loaded = msgspec.structs.replace(HELLO, max_model_len=spec.card.context_length)
        self.hello, self.status = None, None
        self.state, self.reason = ReplicaState.STARTING, "loading weights 40 %"
        self.script = self.play
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, request_id: str = "") -> None:
        """Of the engine without an id, else of a request."""
        if request_id:
            super().start(request_id)
        else:
            self.observers.on_load(LoadProgress(stage="weights", done=40, total=100))

    async def wait_ready(self) -> ReplicaHello:
        """As the mode says."""
        if self.mode == "broken" or "broken" in self.path:
            raise StartError("tiny.gguf: tensor 'x' is cut short; get the file again")
        if self.mode == "loading":
            await asyncio.Event().wait()
        self.hello, self.status = self.loaded, self.loaded.status
        self.state, self.reason = ReplicaState.READY, "ready"
        return self.loaded

    async def stop(self) -> None:
        """Leave a trace that the engine was ended."""
        sys.stderr.write(f"engine stopped {self.path.rpartition('/')[2]}\n")
        sys.stderr.flush()

    def play(self, replica: FakeReplica, request: EngineRequest) -> None:
        """Say one token after the other."""
        task = asyncio.get_running_loop().create_task(self._play(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _play(self, request: EngineRequest) -> None:
        self.start(request.id)
        for _ in range(request.sampling.max_tokens):
            self.say(request.id, "x")
            await asyncio.sleep(TOKEN_S)
        self.finish(request.id, tokens=request.sampling.max_tokens)


if __name__ == "__main__":
    ScriptedSupervisor.mode = sys.argv[1]
    vars(engine)["Supervisor"] = ScriptedSupervisor  # no setting: nobody else needs it
    sys.exit(main(sys.argv[2:]))
