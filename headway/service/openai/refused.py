"""Known fields that cannot be honoured: refused by name, never silently dropped.

A value that asks for nothing (null, or one listed as neutral) passes.
"""

from collections.abc import Mapping

import msgspec

from headway.core.base.errors import InvalidRequest, Unsupported, UnsupportedModality


class Refusal(msgspec.Struct, frozen=True):
    """Why a field is refused, and which of its values ask for nothing."""

    reason: str
    neutral: tuple[object, ...] = ()
    error: type[InvalidRequest] = Unsupported


_TOOLS = "tool calling is not supported yet. Leave it out"
_FORMAT = "structured output is not supported yet. Leave it out"
_TEMPLATE = "the chat template is the server's own and cannot be changed by a request"
_CHAT = "it belongs to chat; prompts are continued as they are"
_INTERNAL = "it is internal to a serving system and not accepted from clients"
_EMBEDS = "prompts are text or token ids; tensors are not accepted"
_NOT_YET = "it is not supported yet. Leave it out"

INTERNAL = (  # fields of one server's talk with another
    "kv_transfer_params",
    "ec_transfer_params",
    "do_remote_prefill",
    "do_remote_decode",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "prefill_addr",
    "prefill_url",
    "prefill_worker",
    "remote_host",
    "remote_port",
    "remote_engine_id",
    "remote_block_ids",
    "data_parallel_rank",
    "vllm_xargs",
    "extra_body",
    "custom_logit_processor",
    "logits_processors",
)

_SHARED: dict[str, Refusal] = {
    "tools": Refusal(_TOOLS, ([],)),
    "tool_choice": Refusal(_TOOLS, ("none",)),
    "functions": Refusal(_TOOLS, ([],)),
    "function_call": Refusal(_TOOLS, ("none",)),
    "response_format": Refusal(_FORMAT, ({"type": "text"},)),
    **{
        name: Refusal(_FORMAT)
        for name in (
            "structured_outputs",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "regex",
            "ebnf",
            "json_schema",
            "grammar",
        )
    },
    "chat_template": Refusal(_TEMPLATE),
    "documents": Refusal(_NOT_YET, ([],)),
    **{
        name: Refusal(_EMBEDS)
        for name in ("prompt_embeds", "image_embeds", "input_embeds", "inputs_embeds")
    },
    **{name: Refusal(_INTERNAL) for name in INTERNAL},
    **{
        name: Refusal(_NOT_YET)
        for name in (
            "stop_regex",
            "lora_path",
            "session_id",
            "thinking_token_budget",
        )
    },
    "use_beam_search": Refusal("beam search is not supported", (False,)),
    "length_penalty": Refusal("beam search is not supported", (1,)),
    "early_stopping": Refusal("beam search is not supported", (False,)),
    "return_hidden_states": Refusal(_NOT_YET, (False,)),
    "return_tokens_as_token_ids": Refusal(_NOT_YET, (False,)),
    "no_stop_trim": Refusal("use 'include_stop_str_in_output'", (False,)),
    "spaces_between_special_tokens": Refusal(_NOT_YET, (True,)),
    "add_special_tokens": Refusal("the model's own rule for special tokens is kept"),
}

CHAT: Mapping[str, Refusal] = {
    **_SHARED,
    "modalities": Refusal("only text is supported", (["text"],), UnsupportedModality),
    "audio": Refusal("only text is supported", (), UnsupportedModality),
    "reasoning_effort": Refusal("the model has no reasoning effort to set", ("none",)),
    "verbosity": Refusal("the model has no verbosity to set", ("medium",)),
    "web_search_options": Refusal("the server fetches nothing from the web"),
    "suffix": Refusal("it belongs to /v1/completions", ("",)),
}

COMPLETION: Mapping[str, Refusal] = {
    **_SHARED,
    "suffix": Refusal("filling in between prompt and suffix is not supported", ("",)),
    "max_completion_tokens": Refusal("it belongs to chat; use 'max_tokens'"),
    "chat_template_kwargs": Refusal(_CHAT, ({},)),
    "add_generation_prompt": Refusal(_CHAT, (True,)),
    "continue_final_message": Refusal(_CHAT, (False,)),
    "top_logprobs": Refusal("it belongs to chat; use 'logprobs' with a number"),
}


def refuse(fields: Mapping[str, object], table: Mapping[str, Refusal]) -> None:
    """Raise for the first field of `table` that asks for something."""
    for name, value in fields.items():
        refusal = table.get(name)
        if refusal is None or value is None or value in refusal.neutral:
            continue
        raise refusal.error(f"'{name}' cannot be used here: {refusal.reason}.", param=name)
