"""How long steps get beside more important prompts, and when such are expected."""

from headway.core.base.units import Seconds
from headway.core.sched.haste import BESIDE, EXPECTED, LATELY, Haste


def test_prompts_beside_a_more_important_one_get_the_smallest_part_of_the_step() -> None:
    haste = Haste()
    haste.begin()
    assert haste.share(1, Seconds(0.0)) == 1.0
    haste.computes(0)
    assert [haste.share(each, Seconds(0.0)) for each in range(3)] == [1.0, BESIDE, BESIDE]
    haste.begin()
    assert haste.share(1, Seconds(0.0)) == 1.0


def test_steps_stay_short_for_a_while_after_somebody_more_important_came() -> None:
    haste = Haste()
    haste.came(0, Seconds(5.0))
    haste.came(2, Seconds(5.0))
    soon, later = Seconds(5.0 + LATELY / 2), Seconds(5.0 + LATELY)
    assert [haste.share(each, soon) for each in range(3)] == [1.0, EXPECTED, EXPECTED]
    assert haste.share(1, later) == 1.0
