"""Pages that tell: health, readiness, models, version, the API's description."""

import asyncio
import threading

import msgspec
import pytest

from headway.service.gateway.settings import GatewaySettings
from headway.service.gateway.tokens import MAX_WAITING
from headway.service.wire.transport import ReplicaState
from tests.unit.service.gateway.fakes import (
    CONTEXT,
    HELLO,
    HI,
    STATUS,
    VOCAB,
    CharTokenizer,
    FakeReplica,
    Site,
    run,
    site,
    until,
)

READY_STATES = {
    ReplicaState.STARTING: (200, 503),
    ReplicaState.READY: (200, 200),
    ReplicaState.STALLED: (200, 503),
    ReplicaState.STOPPED: (200, 503),
    ReplicaState.FAILED: (503, 503),
    ReplicaState.UNLOADED: (200, 200),
    ReplicaState.UNLOADING: (200, 200),
}


@pytest.mark.spec("M3")
@pytest.mark.parametrize("state", ReplicaState)
def test_health_is_being_alive_and_ready_is_answering_now(state: ReplicaState) -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.state, replica.reason = state, "why it is so"
        async with site(replica=replica) as here:
            for path, status in zip(("/health", "/ready"), READY_STATES[state], strict=True):
                answer = await here.client.get(path)
                assert answer.status_code == status
                rung = {"rung": "normal"} if path == "/ready" else {}
                told = {"state": state.value, "reason": "why it is so"}
                assert answer.json() == told | rung
                assert (answer.headers.get("retry-after") == "7") == (status == 503)

    run(scenario())


def test_ready_tells_the_rung_of_the_ladder() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.status = msgspec.structs.replace(STATUS, rung=2, waiting_by_class=(0, 1, 5))
        async with site(replica=replica) as here:
            assert (await here.client.get("/ready")).json()["rung"] == "hold"
            assert list((await here.metric("headway_pressure_rung")).values()) == [2]
            waiting = await here.metric("headway_waiting_sequences")
            assert sorted(waiting.values()) == [0, 1, 5]

    run(scenario())


@pytest.mark.spec("M3")
def test_health_says_no_after_the_longer_limit_without_progress_gateway_health_01() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.state, replica.reason = ReplicaState.STALLED, "no step for 59 s"
        async with site(settings=GatewaySettings(live_timeout=60), replica=replica) as here:
            for since, status in ((59.0, 200), (61.0, 503)):
                replica.since_s = since
                assert (await here.client.get("/health")).status_code == status
            replica.state, replica.since_s = ReplicaState.READY, 1e6  # idle is never stalled
            assert (await here.client.get("/health")).status_code == 200

    run(scenario())


def test_models_are_listed_under_all_their_names() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        replica.hello = msgspec.structs.replace(HELLO, max_model_len=256)
        async with site(replica=replica, names=("org/m-1", "m")) as here:
            listed = (await here.client.get("/v1/models")).json()
            assert [entry["id"] for entry in listed["data"]] == ["org/m-1", "m"]
            assert {entry["max_model_len"] for entry in listed["data"]} == {256}
            assert [entry["sampling_defaults"] for entry in listed["data"]] == [{}, {}]
            one = await here.client.get("/v1/models/org/m-1")
            assert one.json()["id"] == "org/m-1"
            missing = await here.client.get("/v1/models/other")
            assert missing.status_code == 404
            assert missing.json()["error"]["code"] == "model_not_found"

    run(scenario())


async def paths_answer(here: Site) -> None:
    described = (await here.client.get("/openapi.json")).json()["paths"]
    for path, methods in described.items():
        for method in methods:
            answer = await here.client.request(method, path.replace("{id}", "m"))
            # What needs a body has none here, and nothing is under way that a beat could be for.
            expected = {404} if path.endswith("/heartbeat") else {200, 400}
            assert answer.status_code in expected, (method, path)
            assert str(answer.status_code) in methods[method]["responses"]


def test_every_described_path_is_served_with_its_method() -> None:
    async def scenario() -> None:
        async with site() as here:
            await paths_answer(here)
            docs = await here.client.get("/docs")
            assert docs.headers["content-type"].startswith("text/html")
            assert "/v1/chat/completions" in docs.text
            assert (await here.client.get("/version")).json() == {"version": "1.2.3"}

    run(scenario())


def test_head_is_answered_like_get_without_a_body() -> None:
    async def scenario() -> None:
        async with site() as here:
            answer = await here.client.head("/health")
            assert answer.status_code == 200
            assert answer.content == b""
            assert (await here.client.get("/health")).status_code == 200

    run(scenario())


def test_text_becomes_ids_and_ids_text_without_the_engine() -> None:
    async def scenario() -> None:
        async with site() as here:
            asked = {"prompt": "Hi", "return_token_strs": True}
            answer = await here.client.post("/tokenize", json=asked)
            ids = CharTokenizer().encode("Hi", add_special=True, parse_special=True)
            told = {"count": 2, "max_model_len": CONTEXT, "tokens": ids, "token_strs": ["H", "i"]}
            assert answer.json() == told
            chat = HI | {"continue_final_message": True, "chat_template_kwargs": {"a": 1}}
            of_chat = (await here.client.post("/v1/tokenize", json=chat)).json()
            back = await here.client.post("/v1/detokenize", json={"tokens": of_chat["tokens"]})
            assert back.json() == {"prompt": "Hi|continued|a=1"}
            assert not here.replica.requests

    run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "Hi", "messages": HI["messages"]}, "prompt"),
        ("/tokenize", {"prompt": "Hi", "model": "other"}, "model"),
        ("/tokenize", {"messages": [{"role": "x"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, VOCAB]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
def test_what_cannot_be_turned_into_ids_or_text_is_refused_by_name(
    path: str, body: dict[str, object], param: str
) -> None:
    async def scenario() -> None:
        async with site() as here:
            answer = await here.client.post(path, json=body)
            assert answer.status_code == (404 if param == "model" else 400)
            assert answer.json()["error"]["param"] == param

    run(scenario())


def test_texts_that_wait_for_their_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    encode = CharTokenizer.encode

    def slow(self: CharTokenizer, text: str, **options: bool) -> list[int]:
        assert gate.wait(10)
        return encode(self, text, **options)

    monkeypatch.setattr(CharTokenizer, "encode", slow)

    async def scenario() -> None:
        async with site() as here:
            body = {"prompt": "Hi"}
            asking = [
                asyncio.create_task(here.client.post("/tokenize", json=body))
                for _ in range(MAX_WAITING + 5)
            ]
            await until(lambda: sum(task.done() for task in asking) == 5)
            gate.set()
            answers = await asyncio.gather(*asking)
            refused = [each for each in answers if each.status_code == 503]
            assert len(refused) == 5
            assert {each.headers["retry-after"] for each in refused} == {"1"}
            assert sum(each.status_code == 200 for each in answers) == MAX_WAITING

    try:
        run(scenario())
    finally:
        gate.set()
