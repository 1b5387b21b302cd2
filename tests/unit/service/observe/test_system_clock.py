from headway.service.observe.clock import SystemClock


def test_the_clock_never_goes_back() -> None:
    clock = SystemClock()
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)
