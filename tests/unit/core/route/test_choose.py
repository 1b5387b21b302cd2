"""Where one request goes: every rule, and the reason it gives."""

import math
from collections import Counter
from typing import Any

import msgspec
import pytest

from headway.core.base.errors import UnsupportedModality
from headway.core.base.units import Seconds
from headway.core.route.choose import Ask, Choice, Chooser
from headway.core.route.degrade import Congestion, PoolState
from headway.core.route.features import Prompt
from headway.core.route.size import Size, Sized
from headway.core.route.table import PoolFacts, RoutesSettings, RouteTable, check
from headway.core.tenancy.tenant import DEFAULT_TARGETS, SloClass, Tenant

POOLS = (
    PoolFacts(names=("small",)),
    PoolFacts(names=("medium",)),
    PoolFacts(names=("large",), modalities=("image",)),
    PoolFacts(names=("coder",)),
)
VERSIONS = {"stable": "small", "preview": "large"}
AUTO = {"small": "small", "medium": "medium", "large": "large"}
BUSY = PoolState(queue_share=0.9)
DOWN = PoolState(is_up=False)


class FixedSizer:
    """Says what the test wants."""

    def __init__(self, size: Size, special: str = "") -> None:
        self.said = Sized(size, special)

    def size(self, prompt: Prompt) -> Sized:
        """Always the same."""
        return self.said


class Bench:
    """A chooser and the pools' states."""

    def __init__(self, sizer: FixedSizer | None = None, **fields: Any) -> None:
        settings = msgspec.convert(fields, RoutesSettings)
        check(settings, POOLS)
        degrade = settings.degrade
        congestion = None if degrade is None else Congestion(degrade, DEFAULT_TARGETS)
        self.chooser = Chooser(RouteTable(settings, POOLS), sizer, congestion)
        self.states: dict[str, PoolState] = {}

    def state(self, pool: str) -> PoolState:
        return self.states.get(pool, PoolState())

    def choose(self, model: str | None, now: float = 0.0, **fields: Any) -> Choice:
        found = self.chooser.table.find(model)
        return self.chooser.choose(ask(model, **fields), found, self.state, Seconds(now))

    def went(self, model: str | None, **fields: Any) -> tuple[str, str]:
        route = self.choose(model, **fields).route
        return route.model, route.reason


def ask(model: str | None, **fields: Any) -> Ask:
    given: dict[str, Any] = {
        "request_id": "r1",
        "tenant": Tenant(),
        "slo_class": SloClass.STANDARD,
        "prompt": lambda: Prompt("Hi", 2),
        **fields,
    }
    return Ask(model=model, **given)


def chat(**fields: Any) -> dict[str, Any]:
    return {"name": "chat", "versions": VERSIONS, **fields}


@pytest.mark.spec("B1")
def test_names_aliases_and_versions_lead_to_their_pools() -> None:
    bench = Bench(default="chat", names=[chat(aliases=["gpt"])])
    assert bench.went("medium") == ("medium", "name")
    assert bench.went("gpt") == ("small", "alias")
    assert bench.went(None) == ("small", "default")
    assert bench.went("preview") == ("large", "version:preview")
    route = bench.choose("chat@preview").route
    assert (route.asked, route.version, route.arm) == ("chat@preview", "preview", "")


def test_an_arm_is_drawn_for_the_user_else_the_tenant_else_the_request() -> None:
    bench = Bench(names=[chat(split={"stable": 1, "preview": 1})])
    acme = Tenant(name="acme")
    assert bench.choose("chat", user="u", tenant=acme).route.reason == "split:user"
    assert bench.choose("chat", tenant=acme).route.reason == "split:tenant"
    assert bench.choose("chat").route.reason == "split:request"
    for _ in range(3):
        assert bench.choose("chat", user="u").route.arm == bench.choose("chat", user="u").route.arm
    arms = {bench.choose("chat", request_id=f"r{i}", tenant=acme).route.arm for i in range(50)}
    assert len(arms) == 1
    arms = {bench.choose("chat", request_id=f"r{i}").route.arm for i in range(50)}
    assert arms == {"stable", "preview"}


def test_a_version_that_is_asked_for_leaves_the_split_out() -> None:
    bench = Bench(names=[chat(split={"stable": 1, "preview": 0})])
    assert bench.went("chat@preview") == ("large", "version:preview")


def test_reload_canary_02_an_unhealthy_version_gets_nothing_and_it_is_told() -> None:
    bench = Bench(names=[chat(split={"stable": 50, "preview": 50})])
    before = {f"u{i}": bench.choose("chat", user=f"u{i}") for i in range(2000)}
    counted = Counter(choice.route.version for choice in before.values())
    assert abs(counted["stable"] - 1000) < 4 * math.sqrt(500)
    bench.states["large"] = DOWN
    for user, choice in before.items():
        after = bench.choose("chat", user=user)
        assert after.route.model == "small"
        if choice.route.version == "preview":
            assert (after.route.reason, after.avoided) == ("unhealthy:preview", "large")
        else:
            assert after == choice


def test_an_arm_of_weight_0_gets_nobody_even_when_the_other_is_down() -> None:
    bench = Bench(names=[chat(split={"stable": 1, "preview": 0})])
    bench.states["small"] = DOWN
    assert bench.went("chat", user="u") == ("small", "split:user")


def test_a_version_that_is_asked_for_and_down_is_answered_by_the_stable_one() -> None:
    bench = Bench(names=[chat()])
    bench.states["large"] = DOWN
    choice = bench.choose("chat@preview")
    assert (choice.route.model, choice.route.version) == ("small", "stable")
    assert choice.avoided == "large"
    bench.states["small"] = DOWN
    assert bench.went("chat@preview") == ("large", "version:preview")


@pytest.mark.spec("B2")
@pytest.mark.parametrize("size", list(Size))
def test_the_automatic_name_goes_by_the_size(size: Size) -> None:
    bench = Bench(FixedSizer(size), auto=AUTO)
    assert bench.went("auto") == (size.value, f"size:{size.value}")


def test_a_size_that_is_down_is_stood_in_for_by_the_next_larger() -> None:
    bench = Bench(FixedSizer(Size.SMALL), auto=AUTO)
    bench.states["small"] = DOWN
    choice = bench.choose("auto")
    assert (choice.route.model, choice.route.reason) == ("medium", "unhealthy:small")
    assert choice.avoided == "small"
    bench.states |= {"medium": DOWN, "large": DOWN}
    assert bench.went("auto") == ("small", "size:small")


@pytest.mark.spec("B2")
def test_code_goes_to_the_pool_for_code_while_that_is_up() -> None:
    bench = Bench(FixedSizer(Size.LARGE, "code"), auto={**AUTO, "special": {"code": "coder"}})
    assert bench.went("auto") == ("coder", "special:code")
    bench.states["coder"] = DOWN
    assert bench.went("auto") == ("large", "size:large")


IMAGE = frozenset({"image"})


@pytest.mark.spec("B2")
def test_images_go_to_a_pool_that_takes_them() -> None:
    bench = Bench(FixedSizer(Size.SMALL), auto=AUTO)
    assert bench.went("auto", modalities=IMAGE) == ("large", "modality:image")
    assert bench.went("large", modalities=IMAGE) == ("large", "name")
    assert bench.went(None, modalities=IMAGE) == ("large", "modality:image")


def test_an_image_that_leaves_its_arm_counts_in_none() -> None:
    route = chat(versions={"stable": "small", "preview": "medium"}, split={"preview": 1})
    bench = Bench(default="chat", names=[route])
    moved = bench.choose(None, modalities=IMAGE).route
    assert (moved.model, moved.version, moved.arm) == ("large", "stable", "")
    route = chat(versions={"stable": "small", "eyes": "large"}, split={"stable": 1})
    bench = Bench(default="chat", names=[route])
    moved = bench.choose(None, modalities=IMAGE).route
    assert (moved.model, moved.version, moved.arm) == ("large", "eyes", "")


def test_what_no_pool_of_the_name_takes_is_refused() -> None:
    bench = Bench(default="chat", names=[chat()])
    for name in ("small", "chat", "chat@stable"):
        with pytest.raises(UnsupportedModality, match="hold image, and no model"):
            bench.choose(name, modalities=IMAGE)
    with pytest.raises(UnsupportedModality, match="audio and image"):
        bench.choose(None, modalities=IMAGE | {"audio"})


CASCADE = {"name": "careful", "cascade": {"first": "small", "then": "large"}}


@pytest.mark.spec("B7")
def test_a_cascade_begins_with_its_first_pool() -> None:
    bench = Bench(names=[CASCADE])
    choice = bench.choose("careful")
    assert (choice.route.model, choice.route.reason) == ("small", "cascade:first")
    assert choice.cascade is not None
    assert choice.cascade.then == "large"


def test_a_cascade_is_left_out_for_token_ids_and_where_its_first_pool_is_down() -> None:
    bench = Bench(names=[CASCADE])
    assert bench.went("careful", is_bound=True) == ("large", "cascade:direct")
    assert bench.went("careful", modalities=IMAGE) == ("large", "modality:image")
    assert bench.choose("careful", modalities=IMAGE).cascade is None
    bench.states["small"] = DOWN
    assert bench.went("careful") == ("large", "cascade:direct")


SMALLER = {"smaller": {"large": "medium", "medium": "small"}}


@pytest.mark.spec("B4")
def test_a_congested_pool_s_requests_go_to_the_smaller_one_and_it_is_told() -> None:
    bench = Bench(degrade=SMALLER)
    assert bench.choose("large").route.degraded == ""
    bench.states["large"] = BUSY
    choice = bench.choose("large")
    assert (choice.route.model, choice.route.degraded) == ("medium", "model")
    assert choice.instead_of == "large"
    bench.states["medium"] = BUSY
    assert bench.went("large")[0] == "small"
    bench.states["small"] = BUSY
    assert bench.went("large")[0] == "large"


@pytest.mark.parametrize(
    "fields",
    [
        {"slo_class": SloClass.VIP},
        {"tenant": Tenant(may_degrade=False)},
        {"is_bound": True},
        {"modalities": IMAGE},
    ],
)
def test_who_may_not_or_cannot_be_degraded_is_not(fields: dict[str, Any]) -> None:
    bench = Bench(degrade=SMALLER)
    bench.states["large"] = BUSY
    choice = bench.choose("large", **fields)
    assert (choice.route.model, choice.route.degraded) == ("large", "")
    assert bench.chooser.helper(ask("large", **fields), choice, bench.state) is None


@pytest.mark.spec("J6")
def test_without_a_smaller_pool_the_answer_gets_shorter() -> None:
    bench = Bench(degrade={"max_tokens": 100})
    bench.states["large"] = BUSY
    route = bench.choose("large", is_bound=True).route
    assert (route.model, route.degraded, route.max_tokens) == ("large", "max_tokens", 100)
    assert bench.choose("large", min_tokens=101).route.degraded == ""
    assert bench.choose("large", max_tokens=100).route.degraded == ""
    assert bench.choose("large", max_tokens=101).route.max_tokens == 100


def test_degrading_does_not_flap_at_the_border() -> None:
    bench = Bench(degrade={**SMALLER, "hold_s": 5.0})
    bench.states["large"] = PoolState(queue_share=0.8)
    assert bench.choose("large", now=0.0).route.model == "medium"
    bench.states["large"] = PoolState(queue_share=0.6)
    assert bench.choose("large", now=4.0).route.model == "medium"
    bench.states["large"] = PoolState()
    assert bench.choose("large", now=8.0).route.model == "medium"
    assert bench.choose("large", now=9.0).route.model == "large"


def test_a_refusal_is_made_good_by_the_first_smaller_pool_that_is_up() -> None:
    bench = Bench(degrade=SMALLER)
    choice = bench.choose("large")
    helper = bench.chooser.helper(ask("large"), choice, bench.state)
    assert helper is not None
    assert (helper.route.model, helper.route.degraded) == ("medium", "model")
    bench.states["medium"] = DOWN
    helper = bench.chooser.helper(ask("large"), choice, bench.state)
    assert helper is not None
    assert helper.route.model == "small"


@pytest.mark.spec("J6")
def test_a_fixed_answer_is_for_those_who_may_be_degraded() -> None:
    bench = Bench(degrade={"answer": "Later, please.", "answer_after_s": 2.0})
    chooser = bench.chooser
    assert chooser.answer_instead(ask("large")) == ("Later, please.", 2.0)
    assert chooser.answer_instead(ask("large", slo_class=SloClass.VIP)) is None
    assert chooser.answer_instead(ask("large", is_bound=True)) is None
    assert Bench(degrade=SMALLER).chooser.answer_instead(ask("large")) is None
    assert Bench().chooser.answer_instead(ask("large")) is None
