"""The families, each as it differs from Llama."""

from collections.abc import Mapping

from headway.compute.arch.family import LLAMA_NORMS, MATRICES, Family, Part, Stem

HEAD_NORMS: Mapping[Part, Stem] = {
    Part.QUERY_NORM: Stem(gguf="attn_q_norm", folder="self_attn.q_norm"),
    Part.KEY_NORM: Stem(gguf="attn_k_norm", folder="self_attn.k_norm"),
}
QKV = Stem(gguf="attn_qkv", folder="self_attn.qkv_proj")
GATE_UP = Stem(gguf="ffn_up", folder="mlp.gate_up_proj")

FAMILIES: Mapping[str, Family] = {
    "llama": Family(pairs_in_gguf=True),
    "mistral": Family(),  # in GGUF files it calls itself llama
    "qwen2": Family(required_biases=frozenset({Part.QUERY, Part.KEY, Part.VALUE})),
    "qwen3": Family(norms={**LLAMA_NORMS, **HEAD_NORMS}),
    "gemma3": Family(
        norms={
            Part.ATTENTION_NORM: Stem(gguf="attn_norm", folder="input_layernorm"),
            **HEAD_NORMS,
            Part.POST_ATTENTION_NORM: Stem(
                gguf="post_attention_norm", folder="post_attention_layernorm"
            ),
            Part.MLP_NORM: Stem(gguf="ffn_norm", folder="pre_feedforward_layernorm"),
            Part.POST_MLP_NORM: Stem(gguf="post_ffw_norm", folder="post_feedforward_layernorm"),
        },
        added_to_norms=1.0,
    ),
    "phi3": Family(
        matrices={
            **MATRICES,
            **dict.fromkeys((Part.QUERY, Part.KEY, Part.VALUE), QKV),
            **dict.fromkeys((Part.GATE, Part.UP), GATE_UP),
        }
    ),
}
