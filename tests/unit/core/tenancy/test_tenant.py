import pytest

from headway.core.tenancy.tenant import (
    DEFAULT_TARGETS,
    SloClass,
    Tenant,
    lowered,
    read_targets,
    read_tenants,
)


def test_a_tenant_is_a_name_a_class_perhaps_a_weight_and_a_key() -> None:
    made = read_tenants(["acme:vip:sk-1", "batch:internal*0.5:sk:2:x", "acme:vip:sk-3"])
    acme = Tenant(name="acme", slo_class=SloClass.VIP)
    batch = Tenant(name="batch", slo_class=SloClass.INTERNAL, weight=0.5)
    assert made == (("sk-1", acme), ("sk:2:x", batch), ("sk-3", acme))


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        (["acme"], "must be NAME:CLASS:KEY"),
        (["acme:vip:"], "must be NAME:CLASS:KEY"),
        ([":vip:SECRET"], "must be NAME:CLASS:KEY"),
        (["a b:vip:SECRET"], "must be NAME:CLASS:KEY"),
        (
            ["ok:vip:k", "acme:gold:SECRET"],
            "must be a class of vip, standard, internal in number 2",
        ),
        (["acme:vip*0:SECRET"], "must be a weight"),
        (["acme:vip*:SECRET"], "must be a weight"),
        (["acme:vip*nan:SECRET"], "must be a weight"),
        (["acme:vip*-1:SECRET"], "must be a weight"),
        (["acme:vip:SECRET", "acme:standard:k"], "'acme' has two"),
        (["acme:vip:SECRET", "other:vip:SECRET"], "must be one tenant a key; number 2"),
    ],
)
def test_a_wrong_tenant_is_refused_without_repeating_its_key(
    items: list[str], problem: str
) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        read_tenants(items)
    assert problem in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_targets_that_are_not_given_keep_their_default() -> None:
    assert read_targets([]) == DEFAULT_TARGETS
    assert read_targets(["vip=0.25"]) == {SloClass.VIP: 0.25, SloClass.STANDARD: 3.0}
    assert read_targets(["standard=none", "internal=none"]) == {SloClass.VIP: 0.5}


@pytest.mark.parametrize(
    "item",
    ["vip", "gold=1", "vip=", "vip=soon", "vip=0", "vip=-1", "vip=nan", "vip=inf", "vip=9"],
)
def test_an_impossible_target_is_refused(item: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        read_targets([item])


def test_a_request_may_lower_its_class_and_never_raise_it() -> None:
    assert lowered(SloClass.VIP, SloClass.INTERNAL) is SloClass.INTERNAL
    assert lowered(SloClass.INTERNAL, SloClass.VIP) is SloClass.INTERNAL
    assert lowered(SloClass.STANDARD, None) is SloClass.STANDARD
