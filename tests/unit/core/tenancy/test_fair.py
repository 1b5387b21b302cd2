from hypothesis import given
from hypothesis import strategies as st

from headway.core.tenancy.fair import FORGET_FROM, FairShare

Party = tuple[int, str]
A, B, C = (1, "a"), (1, "b"), (1, "c")


def share(*parties: Party) -> FairShare[Party]:
    made: FairShare[Party] = FairShare()
    for party in parties:
        made.join(party)
    return made


def test_who_was_served_least_for_their_weight_goes_next() -> None:
    fair = share(A, B)
    fair.charge(A, 10, 1.0)
    assert fair.first() == B
    fair.charge(B, 30, 4.0)
    assert fair.first() == B
    fair.charge(B, 30, 4.0)
    assert fair.first() == A


def test_nobody_waits_nobody_goes() -> None:
    fair = share(A)
    fair.leave(A)
    assert fair.first() is None


def test_whoever_joins_later_starts_at_the_present() -> None:
    fair = share(A, B)
    for party in (A, B):
        fair.charge(party, 1000, 1.0)
    assert fair.first() in (A, B)
    fair.join(C)
    assert fair.time_of(C) == 1000.0


def test_who_was_only_passed_over_keeps_its_claim() -> None:
    fair = share(A, B)
    fair.charge(B, 100, 1.0)
    fair.leave(A)
    assert fair.first() == B
    fair.show(A)
    assert fair.first() == A
    assert fair.time_of(A) == 0.0


def test_parties_that_are_gone_are_forgotten() -> None:
    fair = share()
    for i in range(5 * FORGET_FROM):
        party = (1, str(i))
        fair.join(party)
        assert fair.first() == party
        fair.leave(party)
    assert len(fair.times) <= FORGET_FROM + 1


def test_two_lines_with_one_account_charge_a_party_once_for_both() -> None:
    short = share(A, B)
    long: FairShare[Party] = FairShare(short.times)
    for party in (A, B):
        long.join(party)
    short.charge(A, 10, 1.0)
    assert (short.first(), long.first()) == (B, B)
    assert long.time_of(A) == 10.0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, max_size=200),
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=4, max_size=4),
)
def test_the_first_is_always_the_one_with_the_least_time(
    charges: list[tuple[int, int]], weights: list[float]
) -> None:
    parties = [(1, str(i)) for i in range(4)]
    fair = share(*parties)
    times = [0.0] * 4
    for who, tokens in charges:
        fair.charge(parties[who], tokens, weights[who])
        times[who] += tokens / weights[who]
        first = fair.first()
        assert first is not None
        assert times[int(first[1])] == min(times)
