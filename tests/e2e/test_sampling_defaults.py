"""What a request leaves open, on models whose makers have a say in it, by the real client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server import Server
from tests.folder_models import served_folder

ADVICE = {"temperature": 1.5, "top_k": 1, "top_p": 0.9}
PROMPT = list(range(20, 40))
SMALL = ("--served-model-name", "random", "--kv-cache-memory-bytes", "16M", "--threads", "1")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return served_folder(tmp_path / "folder", **ADVICE)


def ids(server: Server, **asked: Any) -> list[int]:
    """Token ids of a completion by the real client."""
    more = {"return_token_ids": True, "ignore_eos": True, **asked.pop("extra_body", {})}
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as api:
        answer = api.completions.create(
            model="random", prompt=PROMPT, max_tokens=16, seed=3, extra_body=more, **asked
        )
    found = answer.choices[0].model_extra
    assert found is not None
    assert len(found["token_ids"]) == 16
    return list(found["token_ids"])


def told(server: Server) -> Any:
    """What /v1/models says of them."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as api:
        found = api.models.retrieve("random").model_extra
    assert found is not None
    return found["sampling_defaults"]


@pytest.mark.spec("A6")
def test_an_open_field_is_as_the_makers_advise_and_a_given_one_as_it_is_given(
    folder: str, start_model: Callable[..., Server]
) -> None:
    server = start_model(folder, *SMALL)
    assert told(server) == ADVICE
    greedy = ids(server, temperature=0)
    assert ids(server) == greedy, "the makers keep one candidate"
    assert ids(server, extra_body={"top_k": 0}) != greedy, "the request keeps more"
    until_ready = server.log.read_text()
    assert "sampling    temperature 1.5, top_p 0.9, top_k 1 where a request does" in until_ready


def test_the_operator_can_have_the_api_s_own_defaults(
    folder: str, start_model: Callable[..., Server]
) -> None:
    server = start_model(folder, *SMALL, "--generation-config", "none")
    assert told(server) == {}
    assert ids(server) == ids(server, temperature=1, top_p=1, extra_body={"top_k": 0})
    assert ids(server) != ids(server, temperature=0)
    assert "  sampling  " not in server.log.read_text()
