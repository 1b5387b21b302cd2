from headway.core.base.units import Seconds
from headway.core.route.index import CHUNK
from headway.core.route.policy import LOAD, PREFIX, Candidate, Choice, LeastWork, PrefixAffinity

PROMPT = tuple(range(10 * CHUNK))
SALT = b"tenant"


def candidate(name: str, work: float = 0.0, last_sent: int = 0) -> Candidate:
    return Candidate(name, Seconds(work), 1000.0, Seconds(1.0), last_sent)


def affinity(factor: float = 1.5) -> PrefixAffinity:
    return PrefixAffinity("model", 1000, factor)


def chosen(choice: Choice | None) -> Choice:
    assert choice is not None
    return choice


def test_the_least_expected_work_wins() -> None:
    found = LeastWork().choose([candidate("0", 3.0), candidate("1", 2.0)], PROMPT, SALT)
    assert chosen(found).id == "1"


def test_equals_take_turns() -> None:
    found = LeastWork().choose([candidate("0", 1.0, 5), candidate("1", 1.0, 4)], PROMPT, SALT)
    assert chosen(found).id == "1"


def test_nobody_is_chosen_of_nobody() -> None:
    assert LeastWork().choose([], PROMPT, SALT) is None
    assert affinity().choose([], PROMPT, SALT) is None


def test_a_prompt_goes_where_its_beginning_was_sent() -> None:
    policy = affinity()
    first = chosen(policy.choose([candidate("0"), candidate("1")], PROMPT, SALT))
    assert (first.id, first.reason, first.matched) == ("0", LOAD, 0)
    policy.sent(first)
    busier = [candidate("0", 0.2, 1), candidate("1", 0.0)]
    again = chosen(policy.choose(busier, (*PROMPT, 1, 2, 3), SALT))
    assert (again.id, again.reason, again.matched) == ("0", PREFIX, len(PROMPT))


def test_a_prompt_does_not_follow_its_beginning_to_a_replica_that_is_too_busy() -> None:
    policy = affinity()
    policy.sent(chosen(policy.choose([candidate("0")], PROMPT, SALT)))
    # The request itself takes 0.32 s of prompt and 1 s of answer.
    at_limit = [candidate("0", 0.66), candidate("1", 0.0)]
    assert chosen(affinity().choose(at_limit, PROMPT, SALT)).id == "1"
    generous = PrefixAffinity("model", 1000, 3.0)
    generous.sent(chosen(generous.choose([candidate("0")], PROMPT, SALT)))
    assert chosen(generous.choose([candidate("0", 0.3), candidate("1")], PROMPT, SALT)).id == "0"
    assert chosen(policy.choose([candidate("0", 0.67), candidate("1")], PROMPT, SALT)).id == "1"


def test_a_prompt_does_not_wait_for_longer_than_its_cache_saves() -> None:
    policy = affinity(factor=100.0)
    policy.sent(chosen(policy.choose([candidate("0")], PROMPT, SALT)))
    assert chosen(policy.choose([candidate("0", 0.31), candidate("1")], PROMPT, SALT)).id == "0"
    assert chosen(policy.choose([candidate("0", 0.33), candidate("1")], PROMPT, SALT)).id == "1"


def test_a_prompt_never_attracts_the_same_one_of_another_salt() -> None:
    policy = affinity(factor=100.0)
    policy.sent(chosen(policy.choose([candidate("0")], PROMPT, b"a")))
    busier = [candidate("0", 0.001), candidate("1")]
    assert chosen(policy.choose(busier, PROMPT, b"a")).id == "0"
    other = chosen(policy.choose(busier, PROMPT, b"b"))
    assert (other.id, other.matched) == ("1", 0)


def test_a_replica_that_died_is_remembered_for_nothing() -> None:
    policy = affinity()
    policy.sent(chosen(policy.choose([candidate("0")], PROMPT, SALT)))
    policy.forget("0")
    found = chosen(policy.choose([candidate("0", 0.001), candidate("1")], PROMPT, SALT))
    assert (found.id, found.matched) == ("1", 0)
