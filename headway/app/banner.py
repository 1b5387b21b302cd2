"""What a server says once it is ready."""

from collections.abc import Sequence

from headway import __version__
from headway.core.messages.health import ReplicaHello


def banner(
    url: str,
    models: Sequence[tuple[str, ReplicaHello | None]],
    took_s: float,
    others: Sequence[tuple[str, str]] = (),
) -> str:
    """What a person needs to know once everything answers; no hello: not loaded yet.

    others  models behind other servers, and how those are
    """
    lines = [f"\nHeadway {__version__} is ready after {took_s:.1f} s", f"  URL         {url}"]
    for name, hello in models:
        if hello is None:
            lines.append(f"  model       {name} (loaded when a request needs it)")
            continue
        lines += [
            f"  model       {name} ({hello.executor})",
            f"  context     {hello.max_model_len} tokens",
            f"  KV cache    {hello.num_blocks * hello.block_size} tokens",
        ]
    lines += [f"  model       {name} ({told})" for name, told in others]
    return (
        "\n".join(lines) + f"\n\nTry it:\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d "
        f"""'{{"messages":[{{"role":"user","content":"What is the capital of France?"}}]}}'\n"""
    )
