"""Jinja as chat templates know it, in the immutable sandbox.

A template comes from the model file, never from a request. The sandbox keeps it from
reaching Python; what one expression may build, and how many steps a rendering may take, are
bounded.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime

from jinja2 import TemplateError, nodes, pass_context
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_center, do_format, do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_BUILT = 1 << 20  # characters or elements that one expression may build
MAX_JOINED = 1 << 24  # the same of what is put together piece by piece, as whole chats are
MAX_EXPONENT = 64
CALL_PART = 64  # numbers given to a call (counts, widths) cost a step for so much of them
STEPS = "headway_steps"  # what a rendering may still do, among the template's variables
# Widths and precisions in format strings that could build very much.
PERCENT_WIDTH = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\*|\d{6,}|\d*\.(?:\*|\d{6,}))")
COUNTED, JOINED = "counted_elements", "joined_pieces"  # names of filters that bound
BRACES_WIDTH = re.compile(r"\{[^{}]*:[^{}]*\d{6,}")


class TemplateRefusal(TemplateError):
    """The template itself called `raise_exception`."""


class TemplateTooLong(TemplateError):
    """The rendering took more steps than it may."""


class Steps:
    """How much one rendering may still do: a step is an element of a loop, or a call."""

    __slots__ = ("_left",)

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, count: int) -> None:
        """Use some of them; raises TemplateTooLong."""
        self._left -= count
        if self._left < 0:
            raise TemplateTooLong("it takes too many steps")


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

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
        )
        self.filters["tojson"] = to_json
        self.filters["center"] = _center
        self.filters["indent"] = _indent
        self.filters["format"] = _format
        self.filters[COUNTED] = _counted
        self.filters[JOINED] = _joined
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(form)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The library's own hook, with every loop's elements and every joined text counted."""
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, COUNTED, [], [], None, None, lineno=loop.lineno)
        for join in list(template.find_all(nodes.Concat)):
            pieces = nodes.List(join.nodes, lineno=join.lineno)
            # A sum of one: what is joined stays a node of its own kind.
            join.nodes = [nodes.Filter(pieces, JOINED, [], [], None, None, lineno=join.lineno)]
        template.set_environment(self)
        return template

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Sums, products, powers and format strings, once their result is known to be small."""
        if operator == "+":
            _refuse_sum(left, right)
        elif operator == "**":
            _refuse_over(right, MAX_EXPONENT)
        elif operator == "*":
            _refuse_product(left, right)
        elif isinstance(left, str):
            _refuse_wide(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """A call whose whole numbers (widths, counts) are not huge, for some steps."""
        cost = 1
        for value in (*args, *kwargs.values()):
            _refuse_over(value, MAX_BUILT)
            if isinstance(value, int):
                cost += abs(value) // CALL_PART
        if isinstance(obj, LoopContext) and args and isinstance(args[0], Sized):
            cost += len(args[0])  # a loop within itself
        _take(context, cost)
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


def _take(context: Context, count: int) -> None:
    steps = context.parent.get(STEPS)  # not `resolve`: a template may set what it likes
    if isinstance(steps, Steps):
        steps.take(count)


@pass_context
def _counted(context: Context, elements: Iterable[object]) -> Iterable[object]:
    """The same elements; those whose number is known stay what they are."""
    if isinstance(elements, Sized):
        _take(context, len(elements))
        return elements
    return _one_by_one(context, elements)


def _one_by_one(context: Context, elements: Iterable[object]) -> Iterator[object]:
    for element in elements:
        _take(context, 1)
        yield element


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


def _refuse_sum(left: object, right: object) -> None:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        most = MAX_JOINED if isinstance(left, str) else MAX_BUILT
        _refuse_over(len(left) + len(right), most)


def _joined(pieces: list[object]) -> str:
    """What `~` makes of them."""
    texts = [str(piece) for piece in pieces]
    _refuse_over(sum(map(len, texts)), MAX_JOINED)
    return "".join(texts)


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
