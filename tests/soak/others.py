"""What the tests of other servers behind a gateway have in common."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import psutil

from tests.e2e.server import Server, until

ASK = [{"role": "user", "content": "Name a colour."}]
CHAT = "/v1/chat/completions"
# Of a gateway with `own` beside `there`.
CASCADES = """\
routes:
  names:
    - {{name: sure, cascade: {{first: {there}, then: own, min_mean_logprob: -100}}}}
    - {{name: unsure, cascade: {{first: {there}, then: own, min_mean_logprob: 0}}}}
    - {{name: back, cascade: {{first: own, then: {there}, min_mean_logprob: 0}}}}
"""
TENANTS = """\
tenant: ["v:vip:key-v", "i:internal:key-i"]
slo_ttft: ["vip=60", "standard=90"]
"""


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may wait to be noticed by its new parent."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def endless(model: str) -> dict[str, Any]:
    """A request that runs until its client leaves."""
    counting = [{"role": "user", "content": "Count to a thousand."}]
    body = {"model": model, "messages": counting, "stream": True, "max_tokens": 1500}
    return {**body, "ignore_eos": True}


def _waits(waiting: Callable[[], float], count: int) -> bool:
    return waiting() == count


def order_behind(
    gateway: Server, model: str, num_busy: int, waiting: Callable[[], float]
) -> list[str]:
    """Who is answered first once one of its busy slots is free: internal, or a vip that came later.

    waiting  how many requests wait, wherever that is
    """
    ended: list[str] = []

    def ask(key: str) -> None:
        headers = {"authorization": f"Bearer key-{key}"}
        body = {"model": model, "messages": ASK, "max_tokens": 4}
        if gateway.post(CHAT, body, headers=headers).status_code == 200:
            ended.append(key)

    asking = [threading.Thread(target=ask, args=(key,)) for key in "iv"]
    with ExitStack() as rest:
        first = gateway.client.stream("POST", CHAT, json=endless(model))
        assert first.__enter__().status_code == 200
        try:
            for _ in range(num_busy - 1):
                answer = gateway.client.stream("POST", CHAT, json=endless(model))
                assert rest.enter_context(answer).status_code == 200
            for count, each in enumerate(asking, 1):
                each.start()
                until(partial(_waits, waiting, count), 30, f"{count} wait")
        finally:
            first.__exit__(None, None, None)
        for each in asking:
            each.join(120)
    return ended
