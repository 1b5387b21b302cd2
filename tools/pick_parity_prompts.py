"""Picks prompts whose greedy continuation is no near-tie, for the parity test.

    HEADWAY_TEST_MODEL=path/to/SmolLM2.gguf python -m tools.pick_parity_prompts

Two right implementations in float32 differ in the last bits; where the two best logits
are close, their greedy texts part. So a prompt is kept only when transformers, on the
file's weights in float32, has the best logit more than MIN_GAP above the second at every
generated position. Writes ids, not text: the test then needs no tokenizer.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.parity.cards import read_card
from tests.parity.transformers_llama import transformers_llama, transformers_logits

TARGET = Path(__file__).parent.parent / "tests" / "parity" / "smollm_prompts.json"
MIN_GAP = 0.5
NUM_TOKENS = 20
NUM_PROMPTS = 7
CANDIDATES = (
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "2, 4, 6, 8, 10, 12,",
    "5, 10, 15, 20, 25,",
    "SELECT * FROM a;\nSELECT * FROM b;\nSELECT * FROM c;\nSELECT",
    "We hold these truths to be self-evident, that all men",
    "a b c d e f g h i j",
    "The bells of the old church rang at noon, and nobody in the square looked up. "
    "The bells of the old church rang at noon, and nobody in the square looked up. "
    "The bells of the old church rang at noon,",
    "Name: Anna\nAge: 31\nCity: Oslo\n\nName: Ben\nAge: 42\nCity: Rome\n\n"
    "Name: Cara\nAge: 25\nCity: Bonn\n\nName:",
    "uno due tre uno due tre uno due tre uno due tre uno due tre uno due",
    "if a == 1:\n    return 1\nif a == 2:\n    return 2\nif a == 3:\n    return 3\nif a",
    "To bake bread you need flour, water, salt and yeast. Repeat: To bake bread you need flour, "
    "water, salt and yeast. Repeat: To bake bread you need flour, water, salt and yeast. Repeat:",
    "<li>one</li>\n<li>two</li>\n<li>three</li>\n<li>four</li>\n<li>",
    "apple -> APPLE\nriver -> RIVER\nstone -> STONE\ncloud -> CLOUD\napple ->",
    "I said no. He said yes. I said no. He said yes. I said no. He said yes. I said no. He",
    "x1 = 1\nx2 = 2\nx3 = 3\nx4 = 4\nx5 = 5\nx6 = 6\nx7 =",
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Monday Tuesday Wednesday",
)


def tokenizer(path: str) -> Tokenizer:
    """Byte-level BPE of the file's own vocabulary and merges."""
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    found = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    found.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    found.add_special_tokens([t for t, kind in zip(tokens, kinds, strict=True) if kind == 3])
    return found


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """The continuation, and the smallest gap on its way; stops at the first near-tie."""
    ids, smallest = list(prompt), float("inf")
    for _ in range(NUM_TOKENS):
        best = torch.topk(transformers_logits(model, ids)[-1], 2)
        smallest = min(smallest, float(best.values[0] - best.values[1]))
        if smallest <= MIN_GAP:
            break
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], smallest


def main() -> int:
    """Write the file; the exit status is 1 when too few prompts qualify."""
    path = os.environ["HEADWAY_TEST_MODEL"]
    words = tokenizer(path)
    model = transformers_llama(read_card(Path(path)), Path(path))
    kept: list[dict[str, Any]] = []
    for text in CANDIDATES:
        prompt = words.encode(text).ids
        continuation, gap = greedy(model, prompt)
        print(f"{gap:6.2f}  {text!r} -> {words.decode(continuation)!r}", flush=True)
        if gap > MIN_GAP and len(kept) < NUM_PROMPTS:
            kept.append({"text": text, "gap": round(gap, 3), "ids": prompt, "next": continuation})
    TARGET.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept) + "\n]\n")
    return 0 if len(kept) >= NUM_PROMPTS else 1


if __name__ == "__main__":
    sys.exit(main())
