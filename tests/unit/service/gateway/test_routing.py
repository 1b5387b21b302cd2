"""Routes as clients meet them: which model answers, and what the answer says of it."""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec
import pytest

from headway.core.base.units import Seconds
from headway.core.messages.health import ReplicaStatus
from headway.core.messages.path import (
    EngineRequest,
    Finished,
    FinishReason,
    TokenLogprob,
    Tokens,
    Usage,
)
from headway.core.tenancy.limits import Claim, Denied, Granted, Limits
from headway.core.tenancy.tenant import Tenant
from headway.service.gateway.assemble import Access
from headway.service.gateway.books import NoLimits
from headway.service.gateway.journey import Books
from headway.service.gateway.limit_settings import LimitTable, RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from headway.service.wire.transport import ReplicaState
from tests.unit.service.gateway.fakes import (
    CHAT,
    COMPLETIONS,
    HI,
    NATIVE,
    FakeReplica,
    Site,
    run,
    say_hello,
    site,
    until,
)
from tests.unit.service.gateway.test_records import Kept

BIG, MIDDLE = ("big", "large"), ("mid",)
CHAT_ROUTE: dict[str, Any] = {"name": "chat", "versions": {"stable": "m", "preview": "big"}}
PREVIEW = {"default": "chat", "names": [CHAT_ROUTE]}
CASCADE = {"names": [{"name": "careful", "cascade": {"first": "m", "then": "big"}}]}
AUTO = {"auto": {"small": "m", "medium": "mid", "large": "big", "method": "score"}}
HARD = (
    "Design a storage engine: compare two architectures, analyze failure modes and edge cases, "
    "prove that no write is lost, and derive the complexity of each operation step by step."
)

Others = dict[tuple[str, ...], FakeReplica]
Script = Callable[[FakeReplica, EngineRequest], None]


def answering(script: Script = say_hello) -> FakeReplica:
    replica = FakeReplica()
    replica.script = script
    return replica


def saying(text: str, logprob: float = -0.1, reason: FinishReason = FinishReason.STOP) -> Script:
    """A script: one token with this log-probability."""

    def script(replica: FakeReplica, request: EngineRequest) -> None:
        replica.start(request.id)
        scored = (TokenLogprob(token_id=5, logprob=logprob),)
        for choice in range(request.num_choices):
            replica.put(
                Tokens(
                    request_id=request.id,
                    choice=choice,
                    token_ids=(5,),
                    text=text,
                    at=Seconds(1.0),
                    logprobs=scored if request.sampling.num_logprobs is not None else (),
                    finish_reason=reason,
                )
            )
        usage = Usage(prompt_tokens=len(request.prompt), completion_tokens=1)
        replica.put(Finished(request_id=request.id, reason=reason, usage=usage))

    return script


def refusing(code: str) -> Script:
    """A script: the engine refuses it."""

    def script(replica: FakeReplica, request: EngineRequest) -> None:
        replica.fail(request.id, "no", code)

    return script


def busy(replica: FakeReplica) -> ReplicaStatus:
    """The state of its engine on the third rung of its ladder."""
    assert replica.status is not None
    return msgspec.structs.replace(replica.status, rung=2)


async def ask(here: Site, model: str | None, path: str = CHAT, **more: Any) -> httpx.Response:
    named = {} if model is None else {"model": model}
    return await here.client.post(path, json={**HI, **named, **more})


def told(answer: httpx.Response) -> dict[str, str]:
    """What the headers say, without the common part of their names."""
    return {
        name.removeprefix("x-headway-"): value
        for name, value in answer.headers.items()
        if name.startswith("x-headway-")
    }


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def streamed(answer: httpx.Response) -> str:
    """The text of a stream of chat chunks."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_without_routes_nothing_is_told_of_them() -> None:
    async def scenario() -> None:
        async with site(replica=answering()) as here:
            assert told(await ask(here, "m")) == {}
            assert await here.metric("headway_routed_requests_total") == {}

    run(scenario())


@pytest.mark.spec("B1")
def test_chat_goes_to_the_stable_version_and_model_preview_to_the_preview_one() -> None:
    async def scenario() -> None:
        small, big = answering(saying("old")), answering(saying("new"))
        async with site(replica=small, others={BIG: big}, routes=PREVIEW) as here:
            plain = await ask(here, None, NATIVE)
            asked = await ask(here, None, NATIVE + "?model=preview")
            both = await ask(here, "chat", NATIVE + "?model=preview")
            openai = await ask(here, "chat@preview")
            assert '"token":"old"' in plain.text
            assert '"token":"new"' in asked.text
            assert '"token":"new"' in both.text
            assert text_of(openai) == "new"
            stable = {"model": "m", "version": "stable", "route": "default"}
            preview = {"model": "big", "version": "preview", "route": "version:preview"}
            assert told(plain) == stable
            assert told(asked) == told(both) == told(openai) == preview
            assert openai.json()["model"] == "chat@preview"
            series = await here.metric("headway_routed_requests_total")
            assert sum(series.values()) == 4
            labels = '{model="big",reason="version:preview",route="chat",version="preview"}'
            assert series[labels] == 3

    run(scenario())


def test_routes_are_listed_among_the_models() -> None:
    async def scenario() -> None:
        async with site(others={BIG: FakeReplica()}, routes=PREVIEW) as here:
            listed = (await here.client.get("/v1/models")).json()["data"]
            assert [each["id"] for each in listed] == ["m", "m-alias", "big", "large", "chat"]
            assert (await here.client.get("/v1/models/chat")).json()["id"] == "chat"
            missing = await ask(here, "nope")
            assert missing.status_code == 404
            assert missing.json()["error"]["message"].endswith("m, m-alias, big, large, chat.")
            assert (await ask(here, "chat@next")).status_code == 404

    run(scenario())


@pytest.mark.spec("B3")
def test_reload_canary_02_the_split_is_by_user_and_an_unhealthy_version_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    split = {**CHAT_ROUTE, "split": {"stable": 50, "preview": 50}}

    async def scenario() -> None:
        big = answering(saying("new"))
        routes = {"names": [split]}
        async with site(replica=answering(), others={BIG: big}, routes=routes) as here:

            async def arms() -> dict[str, Mapping[str, str]]:
                users = [f"user-{number}" for number in range(40)]
                return {user: told(await ask(here, "chat", user=user)) for user in users}

            first, second = await arms(), await arms()
            assert first == second
            counted = Counter(each["arm"] for each in first.values())
            assert min(counted["stable"], counted["preview"]) >= 8
            assert {each["route"] for each in first.values()} == {"split:user"}
            big.state = ReplicaState.FAILED
            moved = await arms()
            assert {each["model"] for each in moved.values()} == {"m"}
            reasons = Counter(each["route"] for each in moved.values())
            assert reasons["unhealthy:preview"] == counted["preview"]
            avoided = await here.metric("headway_route_avoided_total")
            assert avoided == {'{model="big",route="chat"}': counted["preview"]}
            big.state = ReplicaState.READY
            assert await arms() == first
        said = [record.getMessage() for record in caplog.records if "route_" in record.message]
        assert said == ["route_avoids_unhealthy_model", "route_uses_model_again"]

    with caplog.at_level(logging.INFO, logger="headway.service.gateway.routing"):
        run(scenario())


@pytest.mark.spec("B2")
def test_auto_sends_a_simple_prompt_to_the_small_model_and_a_hard_one_to_the_large() -> None:
    async def scenario() -> None:
        others: Others = {MIDDLE: answering(), BIG: answering()}
        async with site(replica=answering(), others=others, routes=AUTO) as here:
            simple = await ask(here, "auto")
            hard = await ask(here, "auto", messages=[{"role": "user", "content": HARD}])
            assert told(simple) == {"model": "m", "version": "stable", "route": "size:small"}
            assert told(hard)["route"] == "size:large"
            assert hard.json()["model"] == "auto"
            completion = await here.client.post(
                COMPLETIONS, json={"model": "auto", "prompt": [HARD, "x"]}
            )
            assert told(completion)["model"] == "big"

    run(scenario())


@pytest.mark.spec("B7")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_sure", [True, False])
def test_a_cascade_gives_the_first_answer_or_only_the_second(stream: bool, is_sure: bool) -> None:
    async def scenario() -> None:
        small = answering(saying("small talk", -0.1 if is_sure else -2.0))
        big = answering(saying("large words"))
        async with site(replica=small, others={BIG: big}, routes=CASCADE) as here:
            answer = await ask(here, "careful", stream=stream, n=2)
            text = streamed(answer)[: len(streamed(answer)) // 2] if stream else text_of(answer)
            assert text == ("small talk" if is_sure else "large words")
            assert told(answer)["model"] == ("m" if is_sure else "big")
            assert told(answer)["route"] == ("cascade:first" if is_sure else "cascade:escalated")
            assert (len(small.ids), len(big.ids)) == (1, 0 if is_sure else 1)
            assert small.requests[small.ids[0]].sampling.num_logprobs == 0
            outcome = "kept" if is_sure else "logprob"
            counted = await here.metric("headway_cascade_requests_total")
            assert counted == {f'{{model="m",outcome="{outcome}"}}': 1}
            rate = await here.metric("headway_cascade_escalation_rate")
            assert rate == {'{model="m"}': 0.0 if is_sure else 1.0}
            if not stream:
                assert answer.json()["choices"][0]["logprobs"] is None
            assert await here.outcomes() == {"ok": 1}
            assert small.holds.held == big.holds.held == []

    run(scenario())


def test_a_cascade_s_client_gets_the_log_probabilities_that_it_asked_for() -> None:
    async def scenario() -> None:
        small = answering(saying("yes", -0.25))
        async with site(replica=small, others={BIG: answering()}, routes=CASCADE) as here:
            answer = (await ask(here, "careful", logprobs=True)).json()["choices"][0]
            assert [each["logprob"] for each in answer["logprobs"]["content"]] == [-0.25]

    run(scenario())


class Prices:
    """A token of `m` costs 1, whatever kind it is; one of `big` 100."""

    def cost(self, model: str, prompt: int, cached: int, completion: int) -> int:
        """The sum."""
        return (prompt + completion) * {"m": 1, "big": 100}[model]


class Reserved(NoLimits):
    """Grants everything, and keeps what was reserved and used."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.used: list[tuple[int, int]] = []

    async def reserve(self, claim: Claim, now: float) -> Granted | Denied:
        """Keep it."""
        self.claims.append(claim)
        return Granted()

    async def settle(self, claim: Claim, tokens: int, cost: int, now: float) -> None:
        """Keep it."""
        self.used.append((tokens, cost))


@pytest.mark.parametrize(
    ("logprob", "model", "tokens", "cost"),
    [(-0.1, "m", (2, 1, 1), 3), (-2.0, "big", (4, 2, 1), 3 + 300)],
)
def test_both_calls_of_a_cascade_are_one_record_and_one_reservation(
    logprob: float, model: str, tokens: tuple[int, int, int], cost: int
) -> None:
    async def scenario() -> None:
        ledger, limits = Kept(), Reserved()
        books = Books(limits, ledger, Prices(), time.time, "g")
        small, big = answering(saying("x", logprob)), answering(saying("y"))
        limited = LimitTable(RateLimitSettings(default=Limits(tokens_per_minute=1000)))
        more: dict[str, Any] = {"books": books, "rate_limits": limited}
        async with site(replica=small, others={BIG: big}, routes=CASCADE, **more) as here:
            await ask(here, "careful", max_tokens=5)
            record = await ledger.one()
            assert record.route is not None
            assert record.route.model == model
            assert (record.prompt_tokens, record.completion_tokens, record.sent_tokens) == tokens
            assert record.cost == cost
            (claim,) = limits.claims
            assert (claim.tokens, claim.cost) == (2 * (2 + 5), 7 + 700)
            assert limits.used == [(tokens[0] + tokens[1], cost)]

    run(scenario())


def test_a_fixed_answer_costs_nothing() -> None:
    async def scenario() -> None:
        ledger, silent = Kept(), FakeReplica()
        silent.script = lambda replica, request: replica.start(request.id)
        books = Books(NoLimits(), ledger, Prices(), time.time, "g")
        async with site(replica=silent, routes=ANSWER, books=books) as here:
            assert text_of(await ask(here, "m")) == "We are busy."
            silent.lose(silent.ids[0])
            record = await ledger.one()
            assert (record.cost, record.sent_tokens, record.outcome) == (0, 0, "ok")
            assert record.route is not None
            assert record.route.degraded == "answer"

    run(scenario())


@pytest.mark.parametrize("code", ["queue_full", "internal_error", "engine_lost"])
def test_a_cascade_whose_first_model_fails_goes_on_to_the_second(code: str) -> None:
    async def scenario() -> None:
        small, big = answering(refusing(code)), answering(saying("large words"))
        async with site(replica=small, others={BIG: big}, routes=CASCADE) as here:
            answer = await ask(here, "careful", stream=True)
            assert streamed(answer) == "large words"
            counted = await here.metric("headway_cascade_requests_total")
            assert counted == {'{model="m",outcome="error"}': 1}

    run(scenario())


def test_a_doubtful_answer_goes_out_when_the_second_model_is_too_busy() -> None:
    async def scenario() -> None:
        small, big = answering(saying("perhaps", -2.0)), answering(refusing("queue_full"))
        async with site(replica=small, others={BIG: big}, routes=CASCADE) as here:
            answer = await ask(here, "careful")
            assert text_of(answer) == "perhaps"
            assert told(answer)["model"] == "m"
            assert told(answer)["degraded"] == "model"
            small.script = refusing("queue_full")
            assert (await ask(here, "careful")).status_code == 503

    run(scenario())


DEGRADE = {"degrade": {"smaller": {"big": "m"}, "max_tokens": 8}}


@pytest.mark.spec("B4")
def test_a_model_that_refuses_is_helped_out_and_the_answer_says_so() -> None:
    async def scenario() -> None:
        small, big = answering(saying("small")), answering(refusing("queue_full"))
        async with site(replica=small, others={BIG: big}, routes=DEGRADE) as here:
            answer = await ask(here, "large")
            assert text_of(answer) == "small"
            assert answer.json()["model"] == "m"
            assert told(answer) == {
                "model": "m",
                "version": "stable",
                "route": "alias",
                "degraded": "model",
            }
            counted = await here.metric("headway_degraded_requests_total")
            assert counted == {'{kind="model",model="big"}': 1}
            assert await here.outcomes() == {"ok": 1}

    run(scenario())


@pytest.mark.spec("B4")
@pytest.mark.parametrize("stream", [False, True])
def test_a_helper_that_refuses_too_is_helped_out_by_its_own(stream: bool) -> None:
    chain = {"degrade": {"smaller": {"big": "mid", "mid": "m"}}}

    async def scenario() -> None:
        small, full = answering(saying("small")), answering(refusing("queue_full"))
        others: Others = {BIG: answering(refusing("deadline_unmeetable")), MIDDLE: full}
        async with site(replica=small, others=others, routes=chain) as here:
            answer = await ask(here, "large", stream=stream)
            assert (streamed(answer) if stream else text_of(answer)) == "small"
            assert (told(answer)["model"], told(answer)["degraded"]) == ("m", "model")
            assert await here.outcomes() == {"ok": 1}
            small.script = refusing("queue_full")
            refused = await ask(here, "large", stream=stream)
            assert refused.json()["error"]["code"] == "deadline_unmeetable"

    run(scenario())


def test_what_names_token_ids_is_never_taken_to_another_model() -> None:
    async def scenario() -> None:
        small, big = answering(), answering(refusing("queue_full"))
        async with site(replica=small, others={BIG: big}, routes=DEGRADE) as here:
            body = {"model": "big", "prompt": [5, 6, 7]}
            assert (await here.client.post(COMPLETIONS, json=body)).status_code == 503
            assert (await ask(here, "big", logit_bias={"5": 1})).status_code == 503
            assert small.ids == []

    run(scenario())


def test_a_tenant_that_may_not_be_degraded_and_vip_get_the_refusal() -> None:
    async def scenario() -> None:
        big = answering(refusing("queue_full"))
        settings = GatewaySettings(tenant=("gold:vip:key-1", "plain:standard:key-2"))
        others: Others = {BIG: big}
        async with site(
            replica=answering(), others=others, routes=DEGRADE, settings=settings
        ) as here:
            for key, status in (("key-1", 503), ("key-2", 200)):
                answer = await here.client.post(
                    CHAT, json={**HI, "model": "big"}, headers={"authorization": f"Bearer {key}"}
                )
                assert answer.status_code == status

    run(scenario())


@pytest.mark.spec("B4")
def test_a_congested_model_s_requests_go_to_the_smaller_one_before_they_are_refused() -> None:
    async def scenario() -> None:
        small, big = answering(), answering()
        assert big.status is not None
        async with site(replica=small, others={BIG: big}, routes=DEGRADE) as here:
            assert told(await ask(here, "big"))["model"] == "big"
            big.status = busy(big)
            answer = await ask(here, "big")
            assert told(answer)["model"] == "m"
            assert told(answer)["degraded"] == "model"
            assert len(big.ids) == 1
            congested = await here.metric("headway_model_congested")
            assert congested['{model="big",slo_class="standard"}'] == 1
            assert congested['{model="m",slo_class="standard"}'] == 0

    run(scenario())


@pytest.mark.spec("J6")
def test_a_congested_model_without_a_smaller_one_gives_shorter_answers() -> None:
    async def scenario() -> None:
        small = answering()
        async with site(replica=small, others={BIG: answering()}, routes=DEGRADE) as here:
            small.status = busy(small)
            answer = await ask(here, "m", max_tokens=100)
            assert told(answer)["degraded"] == "max_tokens"
            assert [each.sampling.max_tokens for each in small.requests.values()] == [8]
            short = await ask(here, "m", max_tokens=5)
            assert "degraded" not in told(short)

    run(scenario())


ANSWER = {"degrade": {"answer": "We are busy.", "answer_after_s": 0.05}}


@pytest.mark.spec("J6")
@pytest.mark.parametrize("stream", [False, True])
def test_when_no_first_token_comes_in_time_the_fixed_answer_goes_out(stream: bool) -> None:
    async def scenario() -> None:
        silent = FakeReplica()
        async with site(replica=silent, routes=ANSWER) as here:
            answer = await ask(here, "m", stream=stream, n=2)
            assert answer.status_code == 200
            if stream:
                assert streamed(answer) == "We are busy." * 2
            else:
                assert [each["finish_reason"] for each in answer.json()["choices"]] == ["stop"] * 2
                assert text_of(answer) == "We are busy."
                assert answer.json()["usage"]["completion_tokens"] == 0
            assert told(answer)["degraded"] == "answer"
            assert silent.cancelled == silent.ids
            counted = await here.metric("headway_degraded_requests_total")
            assert counted == {'{kind="answer",model="m"}': 1}

    run(scenario())


def test_a_request_that_waits_for_its_model_s_load_gets_the_fixed_answer_too() -> None:
    async def scenario() -> None:
        sleeping = FakeReplica()
        sleeping.holds.on_demand = True
        async with site(replica=sleeping, routes=ANSWER) as here:
            body = {"prompt": ["a", "b"]}
            answer = await here.client.post(COMPLETIONS, json=body)
            texts = [each["text"] for each in answer.json()["choices"]]
            assert texts == ["We are busy."] * 2
            assert sleeping.holds.held == []

    run(scenario())


def test_a_deadline_that_the_engine_cannot_meet_gets_the_fixed_answer() -> None:
    async def scenario() -> None:
        replica = answering(refusing("deadline_unmeetable"))
        routes = {"degrade": {"answer": "Later.", "answer_after_s": 30.0}}
        async with site(replica=replica, routes=routes) as here:
            assert text_of(await ask(here, "m")) == "Later."

    run(scenario())


def test_an_answer_that_has_begun_in_time_takes_all_the_time_it_needs() -> None:
    async def scenario() -> None:
        replica = FakeReplica()
        routes = {"degrade": {"answer": "We are busy.", "answer_after_s": 1.0}}
        async with site(replica=replica, routes=routes) as here:
            _, writer = await here.send(CHAT, {**HI, "stream": True})
            (name,) = await here.calls(1)
            replica.start(name)
            replica.say(name, "Hel")
            await here.read(name)
            loop = asyncio.get_running_loop()
            began = loop.time()  # the clock that the limit goes by
            await until(lambda: loop.time() > began + 1.1)
            assert replica.cancelled == []
            replica.finish(name)
            await until(lambda: here.admitter.num_in_flight == 0)
            writer.close()

    run(scenario())


def test_a_client_that_leaves_a_cascade_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        silent = FakeReplica()
        async with site(replica=silent, others={BIG: answering()}, routes=CASCADE) as here:
            _, writer = await here.send(CHAT, {**HI, "model": "careful"})
            await here.calls(1)
            writer.close()
            await until(lambda: silent.cancelled == silent.ids)
            assert silent.holds.held == []
            await here.counted(cancelled=1)

    run(scenario())


def test_a_tenant_may_use_the_names_that_are_listed_with_each_of_their_versions() -> None:
    async def scenario() -> None:
        routes = {"default": "chat", "names": [{**CHAT_ROUTE, "aliases": ["gpt"]}]}
        tenants = tuple(
            (f"sk-{name}", Tenant(name=name, models=models))
            for name, models in (("by-name", ("chat",)), ("by-alias", ("gpt",)))
        )
        access = Access(keys=tenants)
        async with site(
            replica=answering(), others={BIG: answering()}, routes=routes, access=access
        ) as here:
            for who, listed, ways in (
                ("by-name", ["chat"], {"chat": "m", "chat@preview": "big", "preview": "big"}),
                ("by-alias", ["gpt"], {"gpt": "m", "gpt@preview": "big"}),
            ):
                headers = {"Authorization": f"Bearer sk-{who}"}
                shown = (await here.client.get("/v1/models", headers=headers)).json()["data"]
                assert [each["id"] for each in shown] == listed
                for name in ("chat", "gpt", "chat@preview", "gpt@preview", "preview", "m", "big"):
                    body = {**HI, "model": name}
                    answer = await here.client.post(CHAT, json=body, headers=headers)
                    found = told(answer).get("model", answer.json().get("error", {}).get("code"))
                    assert (name, found) == (name, ways.get(name, "model_not_found"))
                nothing = await here.client.post(CHAT, json=HI | {"model": None}, headers=headers)
                assert told(nothing)["model"] == "m"

    run(scenario())
