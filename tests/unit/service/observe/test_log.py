import io
import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from headway.service.observe.log import LineFormatter, configure, place_of

PROMPT = "my secret diary"


@pytest.fixture
def root_restored() -> Iterator[None]:
    """Put the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def record(event: str, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": event, "levelname": "INFO", "created": 0.5})
    vars(made).update(fields)
    return made


def raised() -> BaseException:
    try:
        raise ValueError(PROMPT)
    except ValueError as error:
        return error


def test_a_record_is_one_line_of_time_level_event_and_sorted_fields() -> None:
    line = LineFormatter().format(record("replica_lost", pid=7, cause="killed by SIGKILL", s=1.5))
    assert line == (
        '1970-01-01T00:00:00.500Z INFO replica_lost cause="killed by SIGKILL" pid=7 s=1.500'
    )


def test_a_value_cannot_start_a_line_or_a_field_of_its_own() -> None:
    line = LineFormatter().format(record("event", text='a\nINFO forged=1 "x"', empty=""))
    assert line == ('1970-01-01T00:00:00.500Z INFO event empty="" text="a\\nINFO forged=1 \\"x\\""')


def test_as_json_a_record_is_one_object() -> None:
    line = LineFormatter(as_json=True).format(record("event", pid=7, text="a\nb"))
    assert json.loads(line) == {
        "at": "1970-01-01T00:00:00.500Z",
        "level": "INFO",
        "event": "event",
        "pid": 7,
        "text": "a\nb",
    }
    assert "\n" not in line


@pytest.mark.parametrize("as_json", [False, True])
def test_security_logs_01_an_exception_is_logged_by_type_and_place_without_its_message(
    as_json: bool,
) -> None:
    error = raised()
    made = record("failed")
    made.exc_info = (type(error), error, error.__traceback__)
    line = LineFormatter(as_json=as_json).format(made)
    assert PROMPT not in line
    assert "ValueError" in line
    assert re.search(r"observe/test_log\.py:\d+ in raised", line)


def test_the_place_of_an_error_that_was_never_raised_is_unknown() -> None:
    assert place_of(ValueError("x")) == "unknown place"
    assert re.fullmatch(r"service/observe/test_log\.py:\d+ in raised", place_of(raised()))


@pytest.mark.usefixtures("root_restored")
def test_configure_sets_the_level_and_replaces_the_handlers() -> None:
    out = io.StringIO()
    configure("warning", stream=out)
    configure("warning", stream=out)
    log = logging.getLogger("headway.test")
    log.info("quiet")
    log.warning("loud", extra={"n": 1})
    assert [line.split(" ", 1)[1] for line in out.getvalue().splitlines()] == ["WARNING loud n=1"]


@pytest.mark.usefixtures("root_restored")
def test_lines_go_to_stderr_by_default() -> None:
    configure()
    [handler] = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr


@pytest.mark.usefixtures("root_restored")
def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure("loud")


@pytest.mark.usefixtures("root_restored")
def test_libraries_that_tell_of_each_start_or_call_only_warn() -> None:
    stream = io.StringIO()
    configure("info", stream=stream)
    for name in ("alembic.runtime", "httpx"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble")
    assert "chatter" not in stream.getvalue()
    assert stream.getvalue().count("trouble") == 2
