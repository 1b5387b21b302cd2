#!/usr/bin/env python3
"""`headway serve` whose engine writes down its steps; used by simulation_truth.py.

    python recorded_server.py RECORDING serve --port 8000

The recording is written when the server has ended: arrivals with their tokens, the times of
every step with its work, and when each request got its first and its last token.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from headway.core.messages.path import (
    Command,
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Submit,
    Tokens,
)
from headway.core.messages.step import StepPlan, StepResult
from headway.core.sim.costs import work_of
from headway.service.replica import driver, server

ENGINE = "--engine"


class Recording:
    """What happened in the engine, on its own clock."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.steps: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {}
        self.arrived: dict[str, float] = {}

    def added(self, request: EngineRequest) -> None:
        """The engine took a request, before the step that is planned next."""
        self.requests[request.id] = {
            "id": request.id,
            "arrived": self.arrived.pop(request.id),
            "before_step": len(self.steps),
            "prompt": list(request.prompt),
            "max_tokens": request.sampling.max_tokens,
            "token_times": [],
            "finished": None,
            "cancelled": False,
        }

    def took(self, events: list[Event], now: float) -> None:
        """Events left the engine."""
        for event in events:
            if isinstance(event, Tokens):
                self.requests[event.request_id]["token_times"].append(now)
            elif isinstance(event, Finished):
                request = self.requests[event.request_id]
                request["finished"] = now
                request["cancelled"] = event.reason is FinishReason.CANCELLED

    def write(self, path: Path) -> None:
        """Keep it."""
        content = {
            "settings": self.settings,
            "requests": list(self.requests.values()),
            "steps": self.steps,
        }
        path.write_text(json.dumps(content))


class RecordedEngine:
    """An engine that is written down; all else is its own."""

    def __init__(self, engine: Any, recording: Recording) -> None:
        self._engine = engine
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: EngineRequest, now: float) -> None:
        self._engine.add(request, now)
        self._recording.added(request)

    def cancel(self, request_id: str, now: float) -> list[Event]:
        events = self._engine.cancel(request_id, now)
        self._recording.took(events, now)
        return events

    def plan(self, now: float) -> StepPlan | None:
        plan = self._engine.plan(now)
        if plan is not None:
            work = work_of(plan)
            self._recording.steps.append(
                {
                    "began": now,
                    "ended": None,
                    "more": False,
                    "decode_rows": work.decode_rows,
                    "decode_pairs": work.decode_pairs,
                    "prefill_tokens": work.prefill_tokens,
                    "prefill_pairs": work.prefill_pairs,
                    "decode_shared": work.decode_shared,
                }
            )
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Event]:
        events = self._engine.commit(plan, result, now)
        step = self._recording.steps[-1]
        step["ended"], step["more"] = now, self._engine.has_work()
        self._recording.took(events, now)
        return events


class RecordedDriver(driver.Driver):
    """Notes when requests arrive, and writes the recording at the end."""

    recording: Recording
    path: Path

    def put(self, command: Command) -> None:
        if isinstance(command, Submit):
            self.recording.arrived[command.request.id] = self._clock.now()
        super().put(command)

    def run(self) -> None:
        super().run()
        self.recording.write(self.path)


def run_engine(path: Path) -> int:
    """The engine's process."""
    from headway.app import replica

    recording = Recording()
    RecordedDriver.recording, RecordedDriver.path = recording, path
    load = replica.load

    def recorded_load(launch: Any, progress: Any) -> server.Loaded:
        import msgspec

        loaded = load(launch, progress)
        recording.settings = msgspec.to_builtins(loaded.engine.settings)
        return loaded._replace(engine=RecordedEngine(loaded.engine, recording))

    server.Driver = RecordedDriver
    replica.load = recorded_load
    return replica.main()


def run_server(path: Path, arguments: list[str]) -> int:
    """The server's process: the real one, with another command for its engine."""
    from headway.app import cli, engine

    command = (sys.executable, __file__, ENGINE, str(path))
    engine.Supervisor = partial(engine.Supervisor, command=command)
    return cli.main(arguments)


if __name__ == "__main__":
    if sys.argv[1] == ENGINE:
        sys.exit(run_engine(Path(sys.argv[2])))
    sys.exit(run_server(Path(sys.argv[1]), sys.argv[2:]))
