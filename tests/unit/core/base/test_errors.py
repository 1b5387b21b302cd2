import inspect

from headway.core.base import errors
from headway.core.base.units import Seconds


def every_error() -> list[type[errors.HeadwayError]]:
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    return [c for c in found if issubclass(c, errors.HeadwayError)]


def test_the_drawn_tree_names_every_error() -> None:
    drawing = errors.__doc__ or ""
    assert [c.__name__ for c in every_error() if c.__name__ not in drawing] == []


def test_whoever_should_wait_is_told_how_long() -> None:
    for kind in (errors.QueueFull, errors.ShuttingDown, errors.ReplicaLost, errors.RateLimited):
        assert kind("full", Seconds(2.0)).retry_after_s == 2.0


def test_a_wrong_setting_and_a_bad_file_are_named_first() -> None:
    assert str(errors.InvalidSetting("--port", "taken")) == "--port: taken"
    assert str(errors.ModelFileError("a.gguf", "cut short")) == "a.gguf: cut short"
