"""What one of several models says for itself: an entry of the file's list, or of a flag.

In a file, an entry has the keys of the whole file that concern a model:

    models:
      - {model: small.gguf, served_model_name: small}
      - {model: large.gguf, served_model_name: large, load: demand, idle_unload: 600}

As text, the same behind the model's file: `large.gguf,served-model-name=large,load=demand`.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from headway.app.document import Document
from headway.app.misfit import misfit
from headway.app.option import Option, Value
from headway.app.options import BY_KEY, OF_A_MODEL
from headway.core.base.errors import InvalidSetting
from headway.service.upstream.settings import UpstreamSettings, check

Values = dict[str, Value | UpstreamSettings]
UPSTREAM = "upstream"  # key of an entry whose model other servers answer for
Where = Callable[..., str]  # of a key, as `Document.where`
MODELS = "models"  # key of the list of models in a file
SEPARATOR = re.compile(r",(?=[A-Za-z][\w-]*=)")


def entries_of(content: object, document: Document) -> list[Values]:
    """Every model of a file's list; raises InvalidSetting, which names the entry and its key."""
    if not isinstance(content, list) or not content:
        raise InvalidSetting(document.where(MODELS), f"must be a list of models, got {content!r}")
    return [
        _entry(each, partial(document.where, MODELS, index)) for index, each in enumerate(content)
    ]


def entry_of_text(text: object, where: str) -> Values:
    """A model's file, and `,key=value` for what it says for itself; raises InvalidSetting.

    A key that takes a list may come again.
    """
    model = read_option(BY_KEY["model"], text, where)
    assert isinstance(model, str), "a model is text"
    path, *pairs = SEPARATOR.split(model)
    given: dict[str, object] = {"model": path} if path else {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        flag = key.replace("_", "-")
        option = BY_KEY.get(flag.replace("-", "_"))
        if flag not in given:
            given[flag] = value
        elif option is not None and option.takes_many:
            given[flag] = f"{given[flag]},{value}"
        else:
            raise InvalidSetting(f"{where} {path}: {flag}", "is given twice")
    return _read(given.items(), lambda *key: f"{where} {path}: {'.'.join(map(str, key))}")


def read_option(option: Option, raw: object, where: str) -> Value:
    """The option's value; raises InvalidSetting, which names its place."""
    try:
        return option.read(raw)
    except ValueError as error:
        raise InvalidSetting(where, str(error)) from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The rest of a message about a name that is not known."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; see docs/settings.md"


def _entry(content: object, where: Where) -> Values:
    if isinstance(content, str):
        return entry_of_text(content, where())
    if not isinstance(content, Mapping):
        raise InvalidSetting(where(), f"must hold keys and values, got {content!r}")
    own = {str(key): value for key, value in content.items() if key != UPSTREAM}
    found = _read(own.items(), where)
    if UPSTREAM in content:
        found[UPSTREAM] = _upstream(content[UPSTREAM], found, where)
    return found


def _upstream(content: object, entry: Values, where: Where) -> UpstreamSettings:
    """What an entry says of other servers; beside it stand its names alone."""
    if content is None:  # not the same as left out: the built-in model would answer in its place
        raise InvalidSetting(where(UPSTREAM), "is empty; give the server's url, or leave it out")
    others = sorted(set(entry) - {"served_model_name"})
    if others:
        raise InvalidSetting(where(others[0]), "is of no use to a model with `upstream`")
    try:
        upstream = msgspec.convert(content, UpstreamSettings)
    except msgspec.ValidationError as error:
        reason, place = misfit(content, UpstreamSettings, error)
        raise InvalidSetting(where(UPSTREAM, *place), reason) from None
    names = entry.get("served_model_name", upstream.names)
    assert isinstance(names, tuple), "names are a tuple"
    if "served_model_name" in entry and upstream.names:
        raise InvalidSetting(where(UPSTREAM, "name"), "stands beside served_model_name; give one")
    upstream = msgspec.structs.replace(upstream, name=names)
    try:
        check(upstream)
    except InvalidSetting as error:
        field = error.param or UPSTREAM
        problem = error.message.removeprefix(f"{field}: ")
        raise InvalidSetting(where(*field.split(".", 2)), problem) from None
    return upstream


def _read(items: Iterable[tuple[str, object]], where: Where) -> Values:
    found: Values = {}
    for key, raw in items:
        name = key.replace("-", "_")
        if name not in BY_KEY:
            raise InvalidSetting(where(key), f"is not a setting{did_you_mean(name, OF_A_MODEL)}")
        if name not in OF_A_MODEL:
            raise InvalidSetting(
                where(key), "belongs to the whole server; set it beside the models"
            )
        if raw is not None:
            found[name] = read_option(BY_KEY[name], raw, where(key))
    return found
