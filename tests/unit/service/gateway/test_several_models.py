"""Several models behind one gateway: found by name, counted apart, never in each other's way."""

import asyncio
from typing import Any

import msgspec

from headway.core.engine.settings import EngineSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.wire.transport import ReplicaState
from tests.unit.service.gateway.fakes import (
    CHAT,
    HELLO,
    HI,
    FakeReplica,
    Site,
    run,
    say_hello,
    site,
    until,
)

OTHER = ("big", "large")


def answering() -> FakeReplica:
    replica = FakeReplica()
    replica.script = say_hello
    return replica


def sleeping() -> FakeReplica:
    """One that is loaded on demand, and is not loaded."""
    replica = answering()
    replica.state, replica.reason = ReplicaState.UNLOADED, "not loaded"
    replica.hello = replica.status = None
    replica.holds.on_demand = True
    return replica


def wake(replica: FakeReplica) -> None:
    replica.state, replica.reason, replica.hello = ReplicaState.READY, "ready", HELLO
    replica.holds.is_here.set()


async def ask(here: Site, model: str | None, **more: Any) -> Any:
    named = {} if model is None else {"model": model}
    return await here.client.post(CHAT, json={**HI, **named, **more})


def test_a_request_goes_to_the_model_that_it_names_and_without_a_name_to_the_first() -> None:
    async def scenario() -> None:
        small, big = answering(), answering()
        async with site(replica=small, others={OTHER: big}) as here:
            for name, shown in (("m-alias", "m-alias"), ("large", "large"), (None, "m")):
                assert (await ask(here, name)).json()["model"] == shown
            assert (len(small.ids), len(big.ids)) == (2, 1)
            assert small.holds.held == big.holds.held == []

    run(scenario())


def test_an_unknown_model_is_a_404_that_lists_all_that_are_served() -> None:
    async def scenario() -> None:
        async with site(others={OTHER: FakeReplica()}) as here:
            for answer in (
                await ask(here, "nope"),
                await here.client.get("/v1/models/nope"),
                await here.client.get("/ready?model=nope"),
                await here.client.post("/tokenize", json={"model": "nope", "prompt": "x"}),
            ):
                assert answer.status_code == 404
                error = answer.json()["error"]
                assert error["code"] == "model_not_found"
                assert error["message"].endswith("Served: m, m-alias, big, large.")

    run(scenario())


def test_models_are_listed_with_their_states() -> None:
    async def scenario() -> None:
        async with site(others={OTHER: sleeping()}) as here:
            listed = (await here.client.get("/v1/models")).json()["data"]
            assert [(entry["id"], entry["state"]) for entry in listed] == [
                ("m", "ready"),
                ("m-alias", "ready"),
                ("big", "unloaded"),
                ("large", "unloaded"),
            ]
            assert (await here.client.get("/v1/models/large")).json()["state"] == "unloaded"

    run(scenario())


def test_a_request_that_waits_for_a_load_holds_up_nobody_else_s() -> None:
    async def scenario() -> None:
        small, big = answering(), sleeping()
        async with site(replica=small, others={OTHER: big}) as here:
            waits = asyncio.create_task(ask(here, "big"))
            await until(lambda: len(big.holds.held) == 1)
            for _ in range(3):
                assert (await ask(here, "m")).status_code == 200
            assert not waits.done()
            wake(big)
            assert (await waits).json()["model"] == "big"

    run(scenario())


def test_one_model_s_full_queue_refuses_nobody_else_s() -> None:
    async def scenario() -> None:
        full, free = FakeReplica(), answering()
        engine = EngineSettings(max_num_seqs=1, max_waiting_requests=1)
        async with site(replica=full, others={OTHER: free}, engine=engine) as here:
            open_ = [asyncio.create_task(ask(here, "m")) for _ in range(2)]
            await here.calls(2)
            assert (await ask(here, "m")).json()["error"]["code"] == "queue_full"
            assert (await ask(here, "big")).status_code == 200
            for name in full.ids:
                full.start(name)
                full.finish(name)
            for each in open_:
                assert (await each).status_code == 200

    run(scenario())


def test_a_wait_is_taken_off_the_promise_of_the_request() -> None:
    async def scenario() -> None:
        big = sleeping()
        settings = GatewaySettings(slo_ttft=("standard=2",))
        async with site(others={OTHER: big}, settings=settings) as here:
            waits = asyncio.create_task(ask(here, "big"))
            await until(lambda: len(big.holds.held) == 1)
            assert big.holds.budgets == [2.0]
            wake(big)
            await waits
            (made,) = big.requests.values()
            assert made.first_token_budget_s == 1.75  # the fake says that it waited for 0.25 s

    run(scenario())


def test_a_client_that_leaves_while_its_model_loads_is_forgotten() -> None:
    async def scenario() -> None:
        big = sleeping()
        async with site(others={OTHER: big}) as here:
            _, writer = await here.send(CHAT, {**HI, "model": "big"})
            await until(lambda: len(big.holds.held) == 1)
            writer.close()
            await until(lambda: not big.holds.held)
            assert big.requests == {}
            assert (await here.outcomes())["cancelled"] == 1

    run(scenario())


def test_a_model_that_cannot_answer_is_a_503_with_its_time_and_the_other_answers() -> None:
    async def scenario() -> None:
        lost = FakeReplica()
        lost.state, lost.reason = ReplicaState.STARTING, "restarting: it was killed"
        async with site(replica=lost, others={OTHER: answering()}) as here:
            refused = await ask(here, "m")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "7")
            assert (await ask(here, "big")).status_code == 200

    run(scenario())


def test_ready_says_which_models_are_and_is_no_while_one_of_the_start_loads() -> None:
    async def scenario() -> None:
        small, big = FakeReplica(), FakeReplica()
        small.state, small.reason, small.status = ReplicaState.STARTING, "loading", None
        async with site(replica=small, others={OTHER: big}) as here:
            told = await here.client.get("/ready")
            assert told.status_code == 503
            assert told.json()["state"] == "starting"
            states = {name: of["state"] for name, of in told.json()["models"].items()}
            assert states == {"m": "starting", "big": "ready"}
            assert (await here.client.get("/ready?model=large")).status_code == 200
            assert (await here.client.get("/ready?model=m")).status_code == 503

    run(scenario())


def test_ready_stays_yes_while_one_model_of_several_is_away() -> None:
    async def scenario() -> None:
        for state in (ReplicaState.FAILED, ReplicaState.STALLED, ReplicaState.UNLOADED):
            small, big = FakeReplica(), FakeReplica()
            small.state, small.since_s = state, 1e6
            async with site(replica=small, others={OTHER: big}) as here:
                assert (await here.client.get("/ready")).status_code == 200
                assert (await here.client.get("/health")).status_code == 200
                big.state, big.since_s = state, 1e6
                alive = state is ReplicaState.UNLOADED
                for path in ("/ready", "/health"):
                    assert (await here.client.get(path)).status_code == (200 if alive else 503)

    run(scenario())


def test_a_model_on_demand_that_loads_counts_as_ready_for_its_requests_wait() -> None:
    async def scenario() -> None:
        only = sleeping()
        async with site(replica=only) as here:
            for state in (ReplicaState.UNLOADED, ReplicaState.STARTING, ReplicaState.UNLOADING):
                only.state = state
                assert (await here.client.get("/ready")).status_code == 200
            only.state = ReplicaState.FAILED
            assert (await here.client.get("/ready")).status_code == 503

    run(scenario())


def test_an_unloaded_model_still_tokenizes() -> None:
    async def scenario() -> None:
        async with site(others={OTHER: sleeping()}) as here:
            body = {"model": "big", "prompt": "abc"}
            told = (await here.client.post("/tokenize", json=body)).json()
            assert told["count"] == 3
            text = await here.client.post(
                "/detokenize", json={"model": "big", "tokens": told["tokens"]}
            )
            assert text.json()["prompt"] == "abc"

    run(scenario())


def test_metrics_and_counts_carry_the_model() -> None:
    async def scenario() -> None:
        small, big = answering(), answering()
        big.status = msgspec.structs.replace(HELLO.status, num_steps=7, num_running=3)
        async with site(replica=small, others={OTHER: big}) as here:
            await ask(here, "m")
            await ask(here, "large")
            await ask(here, "large", stream=True)
            await ask(here, "nope")
            requests = await here.metric("headway_requests_total")
            counted = {
                (key.split('model="')[1].split('"')[0], key.split('outcome="')[1].split('"')[0]): n
                for key, n in requests.items()
            }
            assert counted == {("m", "ok"): 1, ("big", "ok"): 2, ("unknown", "invalid"): 1}
            running = await here.metric("vllm:num_requests_running")
            assert running == {
                '{engine="0",model_name="m"}': 0,
                '{engine="0",model_name="big"}': 3,
            }
            first = await here.metric("inference_first_token_latency_ms_count")
            assert first == {'{model="m"}': 1, '{model="big"}': 2}
            in_flight = await here.metric("headway_requests_in_flight")
            assert in_flight == {'{model="m"}': 0, '{model="big"}': 0}

    run(scenario())


def test_draining_the_server_refuses_for_every_model() -> None:
    async def scenario() -> None:
        async with site(replica=answering(), others={OTHER: answering()}) as here:
            here.gateway.drain()
            for name in ("m", "big"):
                assert (await ask(here, name)).json()["error"]["code"] == "shutting_down"
            assert (await here.client.get("/ready?model=big")).status_code == 503

    run(scenario())
