"""Jinja as chat templates know it, in the immutable sandbox.

A template comes from the model file, never from a request. The sandbox keeps it from
reaching Python, and what one expression may build is bounded. Its running time is not,
which is one more reason why a request may not bring a template.
"""

import json
import re
from collections.abc import Callable
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_center, do_format, do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_BUILT = 1 << 20  # characters or elements that one expression may build
MAX_EXPONENT = 64
# Widths and precisions in format strings that could build very much.
PERCENT_WIDTH = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\*|\d{6,}|\d*\.(?:\*|\d{6,}))")
BRACES_WIDTH = re.compile(r"\{[^{}]*:[^{}]*\d{6,}")


class TemplateRefusal(TemplateError):
    """The template itself called `raise_exception`."""


class GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training; here it is only its body."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body between the tag and its end, as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with the options, filters and functions that chat templates expect.

    `now` gives the local time for `strftime_now`.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
        )
        self.filters["tojson"] = to_json
        self.filters["center"] = _center
        self.filters["indent"] = _indent
        self.filters["format"] = _format
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(form)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Products, powers and format strings, once their result is known to be small."""
        if operator == "**":
            _refuse_over(right, MAX_EXPONENT)
        elif operator == "*":
            _refuse_product(left, right)
        elif isinstance(left, str):
            _refuse_wide(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """A call whose whole numbers (widths, counts) are not huge."""
        for value in (*args, *kwargs.values()):
            _refuse_over(value, MAX_BUILT)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """The sandbox's own `str.format`, for strings without huge widths."""
        wrapper = super().wrap_str_format(value)
        if wrapper is not None and BRACES_WIDTH.search(str(getattr(value, "__self__", ""))):
            raise SecurityError("a format string has a width over the limit")
        return wrapper


# The marks that chat_template puts around user text are lone surrogates; they must come
# through unescaped also where a template asks for ASCII only.
_ESCAPED = re.compile(r"[^\x00-\x7f\ud800-\udfff]")


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` writes it for templates: no HTML escapes, Unicode as it is."""
    _refuse_over(indent, MAX_EXPONENT)
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        return _ESCAPED.sub(lambda match: json.dumps(match.group())[1:-1], text)
    return text


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(message)


def _refuse_over(value: object, limit: int) -> None:
    if isinstance(value, int) and abs(value) > limit:
        raise SecurityError(f"{value:.3g} is over the limit of {limit}")


def _refuse_product(left: object, right: object) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            _refuse_over(len(value) * times, MAX_BUILT)
        elif isinstance(value, int):
            _refuse_over(value, 1 << 64)


def _refuse_wide(form: str) -> None:
    if PERCENT_WIDTH.search(form):
        raise SecurityError("a format string has a width over the limit")


def _center(value: str, width: int = 80) -> str:
    _refuse_over(width, MAX_BUILT)
    return do_center(value, width)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _refuse_over(width if isinstance(width, int) else len(width), 1 << 10)
    return do_indent(s, width, first, blank)


def _format(value: str, *args: object, **kwargs: object) -> str:
    _refuse_wide(value)
    return do_format(value, *args, **kwargs)
