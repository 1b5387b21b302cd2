"""Names to pools: what is found, and which tables are refused."""

from typing import Any

import msgspec
import pytest

from headway.core.base.errors import InvalidSetting, ModelNotFound
from headway.core.route.table import PoolFacts, RoutesSettings, RouteTable, check

POOLS = (PoolFacts(names=("v1", "v1-file")), PoolFacts(names=("v2",)), PoolFacts(names=("v3",)))
VERSIONS = {"stable": "v1", "preview": "v2"}


def settings(**fields: Any) -> RoutesSettings:
    return msgspec.convert(fields, RoutesSettings)


def chat(**fields: Any) -> dict[str, Any]:
    return {"name": "chat", "aliases": ["gpt"], "versions": VERSIONS, **fields}


def table(**fields: Any) -> RouteTable:
    made = settings(**fields)
    check(made, POOLS)
    return RouteTable(made, POOLS)


def problem(**fields: Any) -> str:
    with pytest.raises(InvalidSetting) as caught:
        check(settings(**fields), POOLS)
    return caught.value.message


def test_without_routes_each_pool_is_found_by_its_own_names() -> None:
    made = table()
    assert made.find(None).name == "v1"
    assert made.find(None).word == "default"
    assert (made.find("v1").word, made.find("v1-file").word) == ("name", "alias")
    assert made.find("v1-file").name == "v1"
    with pytest.raises(ModelNotFound, match=r"'nope' here\. Served: v1, v1-file, v2, v3\."):
        made.find("nope")


@pytest.mark.spec("B1")
def test_a_version_is_asked_for_behind_an_at_or_alone_for_the_default_route() -> None:
    made = table(default="chat", names=[chat()])
    assert made.find("chat").version is None
    by_alias = made.find("chat@preview")._replace(word="alias", said="gpt")
    assert made.find("gpt@preview") == by_alias
    assert made.find("chat@preview").version == "preview"
    assert made.find("preview").version == "preview"
    assert made.find("preview").name == "chat"
    with pytest.raises(ModelNotFound, match=r"has no version 'next'\. It has: stable, preview"):
        made.find("chat@next")
    with pytest.raises(ModelNotFound, match="no model 'next'"):
        made.find("next")
    with pytest.raises(ModelNotFound, match="no version"):
        made.find("v2@preview")


def test_a_name_with_an_at_of_its_own_is_found_whole() -> None:
    pools = (PoolFacts(names=("org/name@main",)),)
    assert RouteTable(RoutesSettings(), pools).find("org/name@main").word == "name"


def test_a_route_may_take_the_name_of_a_pool_that_it_leads_to() -> None:
    made = table(names=[{"name": "v1", "versions": VERSIONS, "split": {"preview": 1}}])
    route = made.find("v1").route
    assert route is not None
    assert route.split == {"preview": 1}
    assert made.names["v1"] == "v1"


def test_lists_have_every_name_with_the_pool_that_stands_for_it() -> None:
    auto = {"small": "v1", "medium": "v2", "large": "v3"}
    cascade = {"name": "careful", "cascade": {"first": "v1", "then": "v3"}}
    made = table(names=[chat(), cascade], auto=auto)
    assert made.names == {
        **{"v1": "v1", "v1-file": "v1", "v2": "v2", "v3": "v3"},
        **{"chat": "v1", "gpt": "v1", "careful": "v1", "auto": "v3"},
    }
    with pytest.raises(ModelNotFound, match="has no version"):
        made.find("auto@stable")


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"stable": 0, "preview": 0}, "routes.names[0].split: every weight is 0"),
        ({"stable": -5, "preview": 105}, "routes.names[0].split.stable: must be a weight >= 0"),
        ({"stable": float("nan")}, "routes.names[0].split.stable: must be a weight >= 0"),
        ({"stable": float("inf")}, "routes.names[0].split.stable: must be a weight >= 0"),
        ({"stable": 1, "canary": 1}, "routes.names[0].split.canary: is no version of 'chat'"),
    ],
)
def test_reload_canary_02_impossible_weights_are_refused(split: Any, said: str) -> None:
    assert problem(names=[chat(split=split)]).startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"default": "none"}, "routes.default: 'none' is no name"),
        ({"names": [{"name": "a"}]}, "routes.names[0]: needs exactly one of"),
        ({"names": [{"name": "a", "pool": "v1", "versions": VERSIONS}]}, "routes.names[0]: needs"),
        ({"names": [{"name": "a", "pool": "v9"}]}, "routes.names[0].pool: there is no pool 'v9'"),
        ({"names": [{"name": "", "pool": "v1"}]}, "routes.names[0].name: '' must be"),
        ({"names": [{"name": "a@b", "pool": "v1"}]}, "routes.names[0].name: 'a@b' must be"),
        ({"names": [{"name": "v2", "pool": "v1"}]}, "routes.names[0].name: 'v2' is a pool's name"),
        ({"names": [chat(), chat()]}, "routes.names[1].name: 'chat' is a name of routes.names[0]"),
        (
            {"names": [{"name": "a", "versions": {"preview": "v1"}}]},
            "routes.names[0].versions: needs 'stable'",
        ),
        (
            {"names": [{"name": "a", "versions": {"stable": "v1", "b@c": "v2"}}]},
            "routes.names[0].versions: 'b@c' is no name",
        ),
        (
            {"names": [{"name": "a", "versions": {"stable": "v8"}}]},
            "routes.names[0].versions.stable: there is no pool 'v8'",
        ),
        (
            {"names": [{"name": "a", "cascade": {"first": "v1", "then": "v1"}}]},
            "routes.names[0].cascade.then: must differ",
        ),
        (
            {
                "names": [
                    {
                        "name": "a",
                        "cascade": {"first": "v1", "then": "v2", "min_mean_logprob": 0.5},
                    }
                ]
            },
            "routes.names[0].cascade.min_mean_logprob: must be -100 to 0",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_field_and_reason(
    fields: dict[str, Any], said: str
) -> None:
    assert problem(**fields).startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"small": "v9"}, "routes.auto.small: there is no pool 'v9'; there are v1, v2, v3"),
        ({"name": "v1-file", "small": "v2"}, "routes.auto.name: 'v1-file' is a pool's name"),
        ({"special": {"poetry": "v1"}}, "routes.auto.special: 'poetry' is none of code, math"),
        ({"special": {"code": "v9"}}, "routes.auto.special.code: there is no pool"),
        ({"confidence": 1.0}, "routes.auto.confidence: must be between 0 and 1"),
        ({"medium_from": 9.0}, "routes.auto.large_from: must be at least medium_from (9)"),
        ({"long_prompt_chars": 0}, "routes.auto.long_prompt_chars: must be at least 1"),
    ],
)
def test_an_automatic_choice_that_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    auto = {"small": "v1", "medium": "v2", "large": "v3", **fields}
    assert problem(auto=auto).startswith(said)


@pytest.mark.parametrize("has_logprobs", [True, False])
def test_a_cascade_begins_only_with_a_pool_whose_answers_can_be_scored(has_logprobs: bool) -> None:
    cloud = PoolFacts(names=("cloud",), is_own=False, has_logprobs=has_logprobs)
    pools = (*POOLS, cloud)

    def checked(first: str, then: str) -> None:
        check(settings(names=[{"name": "a", "cascade": {"first": first, "then": then}}]), pools)

    checked("v1", "cloud")
    if has_logprobs:
        return checked("cloud", "v1")
    said = r"^routes\.names\[0\]\.cascade\.first: 'cloud' .* set its upstream\.logprobs: true"
    with pytest.raises(InvalidSetting, match=said):
        checked("cloud", "v1")


def test_a_field_that_is_not_known_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `wieghts`"):
        settings(names=[chat(wieghts={})])
