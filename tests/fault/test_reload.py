"""Models change at SIGHUP while clients stream: nothing is lost, or nothing changes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fault.reloading import Serving, serving
from tests.unit.service.gateway.fakes import run
from tests.unit.service.loaders.samples import tiny
from tests.upstreams import hello, upstream

NUM_CLIENTS = 6
WHOLE = "x" * 12


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Models' files by their names."""
    names = ("one", "two", "three", "broken")
    return {name: tiny(tmp_path / f"{name}.gguf") for name in names}


def config(chat: str, *models: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A configuration whose route `chat` leads to that model."""
    routes = {"names": [{"name": "chat", "pool": chat}]}
    return {"models": list(models), "routes": routes, **more}


def own(files: dict[str, str], name: str, **more: Any) -> dict[str, Any]:
    """One model of ours, in the file of its name unless told otherwise."""
    return {"model": files[name], "served_model_name": [name], **more}


async def keep_streaming(here: Serving, is_over: asyncio.Event) -> int:
    """One stream after the other, each of them whole; how many."""
    count = 0
    while not is_over.is_set():
        assert await here.stream("chat") == WHOLE
        count += 1
    return count


def test_models_come_change_and_leave_under_streams_of_which_none_is_lost(
    tmp_path: Path, files: dict[str, str]
) -> None:
    one, two, three = (own(files, name) for name in ("one", "two", "three"))

    async def scenario() -> None:
        async with serving(tmp_path, config("one", one, two)) as here:
            is_over = asyncio.Event()
            clients = [
                asyncio.create_task(keep_streaming(here, is_over)) for _ in range(NUM_CLIENTS)
            ]
            said = await here.reload(config("one", one, two, three))
            assert "models_leaving=none models_started=three" in said
            assert await here.names() == ["one", "two", "three", "chat"]
            said = await here.reload(config("three", three, one | {"max_num_seqs": 3}))
            assert "models_leaving=one,two models_started=one" in said
            assert await here.names() == ["three", "one", "chat"]
            assert (await here.ask("two")).status_code == 404
            assert (await here.ask("one")).headers["x-headway-model"] == "one"
            assert await here.metric("headway_config_leaving_models") == 2.0
            await here.until(lambda: sorted(here.stopped()) == ["one.gguf", "two.gguf"])
            said = await here.reload(config("one", one | {"max_num_seqs": 3}))
            assert "models_leaving=three models_started=none" in said
            await here.until(lambda: here.stopped()[2:] == ["three.gguf"])
            is_over.set()
            counts = await asyncio.gather(*clients)
            assert min(counts) >= 2
            assert await here.metric('headway_config_reloads_total{outcome="ok"}') == 3.0
            assert await here.metric("headway_config_leaving_models") == 0.0
            said = (await here.client.get("/metrics")).text
            assert 'outcome="error"' not in said
            assert 'headway_engine_ready{model="one"} 1.0' in said
            assert 'headway_engine_ready{model="two"}' not in said

    run(scenario())


def test_a_model_that_does_not_start_changes_nothing_and_is_named(
    tmp_path: Path, files: dict[str, str]
) -> None:
    one, broken = own(files, "one"), own(files, "broken")
    tenants = [{"name": "acme", "keys": ["sk-acme"]}]

    async def scenario() -> None:
        async with serving(tmp_path, config("one", one)) as here:
            stream = asyncio.create_task(here.stream("chat"))
            said = await here.reload(config("broken", one, broken, tenants=tenants))
            assert "reload_refused" in said
            assert "headway.yaml:9: models[1]: broken cannot answer: tiny.gguf: tensor" in said
            assert here.stopped() == ["broken.gguf"]
            assert await stream == WHOLE
            answer = await here.ask("chat")  # needs no key: the tenants were not taken either
            assert answer.headers["x-headway-model"] == "one"
            assert await here.metric('headway_config_reloads_total{outcome="refused"}') == 1.0
            assert await here.metric("headway_config_last_reload_successful") == 0.0
            missing = own(files | {"none": str(tmp_path / "none.gguf")}, "none")
            said = await here.reload(config("one", one, missing))
            assert "none.gguf: " in said
            assert "reload_refused" in said
            said = await here.reload(config("one", one))
            assert " reloaded " in said
            assert await here.metric("headway_config_last_reload_successful") == 1.0

    run(scenario())


def test_what_only_a_start_decides_is_named_and_nothing_else_is_taken(
    tmp_path: Path, files: dict[str, str]
) -> None:
    one, two = own(files, "one"), own(files, "two")

    async def scenario() -> None:
        async with serving(tmp_path, config("one", one, host="127.0.0.1")) as here:
            changed = config("two", two, host="127.0.0.2", max_body_bytes=1000)
            said = await here.reload(changed)
            assert "reload_refused" in said
            assert ": host: restart needed: a reload cannot change" in said
            assert "host, max_body_bytes" in said
            assert await here.names() == ["one", "chat"]

    run(scenario())


def test_servers_of_others_come_change_and_go_and_one_that_does_not_answer_is_refused(
    tmp_path: Path, files: dict[str, str]
) -> None:
    one = own(files, "one")

    async def scenario() -> None:
        async with upstream(hello) as theirs, serving(tmp_path, config("one", one)) as here:
            other = {"upstream": {"name": "other", "url": theirs.url, "health_path": "/health"}}
            dead = {"upstream": {"name": "dead", "url": "http://127.0.0.1:9"}}
            said = await here.reload(config("dead", one, dead))
            assert "models[1].upstream: dead cannot answer: none of its servers answers" in said
            assert "127.0.0.1:9: " in said
            await here.reload(config("other", one, other))
            answer = await here.ask("chat")
            assert answer.headers["x-headway-model"] == "other"
            assert len(theirs.seen) == 1
            probes = len(theirs.probes)
            changed = {"upstream": other["upstream"] | {"max_concurrent": 1}}
            said = await here.reload(config("other", one, changed))
            assert "models_leaving=other models_started=other" in said
            assert (await here.ask("chat")).status_code == 200
            await here.reload(config("one", one))
            await here.until(lambda: here.log.read_text().count("model_left") == 2)
            assert len(theirs.probes) > probes
            assert (await here.ask("other")).status_code == 404

    run(scenario())


def test_a_request_under_way_costs_what_its_model_did_also_when_both_are_gone(
    tmp_path: Path, files: dict[str, str]
) -> None:
    one, two = own(files, "one"), own(files, "two")
    prices = {"models": {"two": {"prompt": 1, "completion": 2}}}
    admin = {"authorization": "Bearer an-admin-key-of-ours"}
    keys = {"api_key": ["sk-1"]}

    async def scenario() -> None:
        began = config("two", one, two, prices=prices, **keys)
        options = ("--admin-key", "an-admin-key-of-ours")
        async with serving(tmp_path, began, *options) as here:
            here.client.headers["authorization"] = "Bearer sk-1"
            stream = asyncio.create_task(here.stream("two"))
            asked = here.client.build_request("GET", "/metrics")
            async with asyncio.timeout(60):
                while 'in_flight{model="two"} 1' not in (await here.client.send(asked)).text:
                    await asyncio.sleep(0.01)
            said = await here.reload(config("one", one, api_key=["sk-2"]))
            assert "models_leaving=two" in said
            assert await stream == WHOLE
            told = await here.client.get("/admin/requests", headers=admin)
            (record,) = told.json()["data"]
            used = (record["prompt_tokens"], record["completion_tokens"])
            assert record["cost"] == used[0] + 2 * used[1] > 0
            assert (await here.ask("one")).status_code == 401
            here.client.headers["authorization"] = "Bearer sk-2"
            assert (await here.ask("one")).status_code == 200

    run(scenario())


def test_what_is_logged_changes_at_once(tmp_path: Path, files: dict[str, str]) -> None:
    one = own(files, "one")

    async def scenario() -> None:
        async with serving(tmp_path, config("one", one)) as here:
            said = await here.reload(config("one", one, log_level="warning"))
            assert "log_level" not in said
            before = here.log.read_text().count("request_finished")
            assert (await here.ask("one")).status_code == 200
            assert here.log.read_text().count("request_finished") == before

    run(scenario())
