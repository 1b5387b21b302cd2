"""What `headway serve` prints once it answers."""

from collections.abc import Sequence
from typing import NamedTuple

from headway import __version__
from headway.core.messages.health import ReplicaHello
from headway.service.loaders.model_files import SamplingDefaults


class Shown(NamedTuple):
    """One model of ours; no hello: not loaded yet."""

    name: str
    hello: ReplicaHello | None
    sampling: SamplingDefaults


def banner(
    url: str,
    models: Sequence[Shown],
    took_s: float,
    others: Sequence[tuple[str, str]] = (),
    *,
    needs_key: bool = False,
) -> str:
    """What a person needs to know once everything answers.

    others     models behind other servers, and how those are
    needs_key  whether the request to try needs one
    """
    # A few tokens, and the likeliest ones: a small model that may go on as long as it likes does.
    body = (
        '{"messages":[{"role":"user","content":"What is the capital of Japan?"}],'
        '"max_tokens":40,"temperature":0}'
    )
    key = ' -H "Authorization: Bearer $KEY"' if needs_key else ""
    lines = [f"\nHeadway {__version__} is ready after {took_s:.1f} s", f"  URL         {url}"]
    for each in models:
        lines += _of_model(each)
    lines += [f"  model       {name} ({told})" for name, told in others]
    return (
        "\n".join(lines) + f"\n\nTry it:\n"
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'\n"
    )


def _of_model(shown: Shown) -> list[str]:
    name, hello, sampling = shown
    if hello is None:
        lines = [f"  model       {name} (loaded when a request needs it)"]
    else:
        lines = [
            f"  model       {name} ({hello.executor})",
            f"  context     {hello.max_model_len} tokens",
            f"  KV cache    {hello.num_blocks * hello.block_size} tokens",
        ]
    if defaults := ", ".join(f"{key} {value:g}" for key, value in sampling.given().items()):
        lines.append(
            f"  sampling    {defaults} where a request does not say (by the model's makers; "
            "--generation-config none turns that off)"
        )
    return lines
