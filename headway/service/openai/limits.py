"""How much one request may ask for; every number stands in docs/limits.md."""

import msgspec


class ApiLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one request, checked before any work is done for it.

    They bound what a small body can cost; how large it may be is the gateway's to say. Ranges
    that OpenAI's API fixes (temperature, penalties, logprobs up to 20) are not settings; they
    stand in `schema`.
    """

    max_messages: int = 2048  # entries of `messages`
    max_prompts: int = 128  # entries of a list `prompt`
    max_choices: int = 16  # `n`
    max_total_choices: int = 256  # prompts times `n`
    max_stop_strings: int = 16  # entries of `stop`
    max_stop_chars: int = 1024  # characters of one stop string
    max_stop_token_ids: int = 128  # entries of `stop_token_ids`
    max_logit_bias: int = 1024  # entries of `logit_bias`
    max_bad_words: int = 128  # entries of `bad_words`, each of at most max_stop_chars
    max_nesting: int = 32  # levels inside a message's `tool_calls`
    max_answer_entries: int = 524288  # log-probabilities in one answer, see `answer_entries`
    max_name_chars: int = 256  # characters of `model`, `user`, `cache_salt` and the like
