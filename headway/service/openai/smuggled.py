"""What a request for another server may not carry: fields that say one thing here, another there.

Servers differ: some match the names of fields whatever their case (Go's JSON does, with "ſ" for an
"s"), some have a second name for the length of an answer, and a template's arguments may be a
template. What the gateway has decided by a field must hold behind it too.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.base.errors import InvalidRequest, Unsupported
from headway.service.openai.refused import INTERNAL

# Fields by which the gateway routes, limits and counts.
OURS = frozenset(
    {
        *("model", "messages", "prompt", "stream", "stream_options", "n", "best_of", "user"),
        *("max_tokens", "max_completion_tokens", "cache_salt", "chat_template", "modalities"),
        *("chat_template_kwargs", "tools", "min_tokens"),
    }
)
# Other names of the length of an answer, past which our own bound would not count.
LENGTHS = frozenset({"n_predict", "num_predict", "max_new_tokens", "max_gen_len", "max_length"})
# Arguments of a template that would be the template, or what it is given by the server.
OF_SERVER = frozenset({"chat_template", "messages", "conversation", "tools", "tokenize"})


def in_disguise(name: str, known: frozenset[str]) -> bool:
    """Whether another server may read it as one of `known`, or of ours, and we do not."""
    if name.islower() and name.isascii():
        return False
    folded = name.casefold()
    return folded != name and (folded in known or folded in OURS or folded in INTERNAL)


def check_lengths(fields: Mapping[str, Any]) -> None:
    """Raise a ClientError where the length of an answer is asked for in more than one way."""
    for name in LENGTHS & fields.keys():
        if fields[name] is not None:
            raise Unsupported(f"'{name}' cannot be used here; use 'max_tokens'.", param=name)
    old, new = fields.get("max_tokens"), fields.get("max_completion_tokens")
    if new is not None and "messages" not in fields:
        raise Unsupported(
            "'max_completion_tokens' belongs to chat; use 'max_tokens'.",
            param="max_completion_tokens",
        )
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "'max_tokens' and 'max_completion_tokens' differ; send one.", param="max_tokens"
        )


def check_template_arguments(fields: Mapping[str, Any]) -> None:
    """Raise Unsupported for arguments that change the template itself, or what it is about."""
    given = fields.get("chat_template_kwargs")
    for name in given if isinstance(given, dict) else ():
        if name.casefold() in OF_SERVER:
            where = f"chat_template_kwargs.{name}" if name in OF_SERVER else "chat_template_kwargs"
            raise Unsupported(
                f"'{where}' is not accepted from clients: the template is the server's own.",
                param=where,
            )
