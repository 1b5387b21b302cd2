"""Every option of `headway serve`, declared once.

Flags, environment variables, keys of the file, the help text and docs/settings.md all
come from `OPTIONS`. An option's place in the settings tree is `section`.`field`.
"""

from collections.abc import Mapping

from headway.app.option import Option
from headway.app.options_server import SERVER_OPTIONS
from headway.app.readers import (
    context,
    one_of,
    seconds,
    share,
    size,
    size_or_none,
    switch,
    text,
    texts,
    whole,
)
from headway.compute.cpu.settings import AUTO, Isa, KvDtype, Quantization
from headway.compute.gpu.runner.settings import AttentionChoice, DeviceChoice, DtypeChoice
from headway.core.fleet.residency import LoadWhen

OPTIONS: tuple[Option, ...] = (
    Option(
        "model",
        "",
        text,
        "GGUF file, folder or hub id to serve; may be given again, see docs/several-models.md",
        default="the built-in model",
    ),
    Option(
        "served-model-name",
        "",
        texts,
        "Names that clients may use for the model; the first one is shown",
        default="the name of the model's file",
        takes_many=True,
    ),
    Option("cache-dir", "", text, "Folder for downloaded models", default="the user's cache"),
    Option(
        "generation-config",
        "",
        one_of("auto", "none"),
        "What a request's open sampling fields mean: auto is what the model's makers set in "
        "generation_config.json or in the GGUF file, told at start and in /v1/models; none is the "
        "API's own defaults",
    ),
    Option(
        "log-level", "", one_of("debug", "info", "warning", "error"), "Least level that is logged"
    ),
    Option("log-json", "", switch, "Log lines as JSON objects", is_switch=True),
    Option(
        "seed",
        "",
        whole(0, 2**63 - 1),
        "Base of the seeds of requests that bring none",
        default="random at every start",
    ),
    Option(
        "executor",
        "",
        one_of("auto", "cpu", "torch"),
        "What computes: cpu (compiled kernels, weights as in the file) or torch; "
        "auto is cpu on CPUs unless --dtype, --block-size or the model ask for torch",
        target="executor_choice",
    ),
    Option(
        "dtype",
        "executor",
        one_of(*DtypeChoice),
        "Type of numbers in the torch executor; auto is float32 on CPUs, bfloat16 on GPUs",
    ),
    Option("device", "executor", one_of(*DeviceChoice), "Where the model runs"),
    Option(
        "attention",
        "executor",
        one_of(*AttentionChoice),
        "How attention is computed; reference is for comparison and slow",
    ),
    Option(
        "threads",
        "executor",
        whole(1, 4096),
        "Threads that compute, in each replica",
        default="one a core that this process may use, divided among the replicas",
    ),
    Option(
        "cpu-isa",
        "cpu",
        one_of(AUTO, *Isa),
        "Newest instructions that the CPU executor may use, fastest first; auto uses all that "
        "the CPU offers, the others make it behave as an older one",
    ),
    Option(
        "quantization",
        "cpu",
        one_of(*Quantization),
        "Bits of the weights in the CPU executor: auto keeps what is quantized in the file and "
        "takes 8 bits for the rest, int4 takes 4 (8 in the head), none keeps all as in the file",
    ),
    Option(
        "kv-cache-dtype",
        "cpu",
        one_of(AUTO, *KvDtype),
        "Type of the numbers in the CPU executor's KV cache; auto is bfloat16, int8 holds nearly "
        "twice the tokens in the same memory",
    ),
    Option(
        "max-model-len",
        "engine",
        context,
        "Prompt and answer together; auto shrinks it to what the memory holds",
        unit="tokens",
        default="the model's own context",
    ),
    Option("max-num-seqs", "engine", whole(1), "Most sequences in one step", unit="sequences"),
    Option("max-num-batched-tokens", "engine", whole(1), "Most tokens in one step", unit="tokens"),
    Option(
        "itl-target",
        "engine",
        seconds(0),
        "Longest wait of a running stream for its next token while others' prompts are computed; "
        "chunks of prompts are cut to the measured speed. 0: chunks of --max-num-batched-tokens",
        unit="s",
    ),
    Option(
        "ageing",
        "engine",
        seconds(0.001),
        "Waiting that lifts a request by one class, and again after as long; best effort is "
        "refused while it would wait longer than this",
        unit="s",
    ),
    Option(
        "long-prompt",
        "engine",
        whole(1),
        "Prompts above this go by the slow lane",
        unit="tokens",
        default="what takes six full steps, as measured",
    ),
    Option(
        "long-output",
        "engine",
        whole(1),
        "Requests with a max_tokens above this go by the slow lane",
        unit="tokens",
    ),
    Option(
        "slow-lane-share",
        "engine",
        share,
        "Part of a step's prompt tokens that long requests may use beside short ones; 1: no lanes",
    ),
    Option("block-size", "engine", whole(0), "Tokens in one KV block; a power of two", "tokens"),
    Option(
        "kv-cache-memory-bytes",
        "engine",
        size,
        "Memory for the KV cache; 512M and 2G are understood",
        unit="bytes",
        default="decided from the free memory",
    ),
    Option(
        "enable-prefix-caching",
        "engine",
        switch,
        "Share the KV blocks of equal beginnings",
        is_switch=True,
    ),
    Option(
        "prefix-cache-ttl",
        "engine",
        seconds(0),
        "Time without use after which a cached block is dropped; 0 keeps it until its room is "
        "needed",
        "s",
    ),
    Option(
        "kv-host-memory-bytes",
        "engine",
        size_or_none,
        "Host memory for KV blocks that leave the KV cache: those of stopped sequences and of "
        "prefixes; taken as it is needed; 0 keeps none",
        unit="bytes",
    ),
    Option(
        "max-waiting-requests",
        "engine",
        whole(1),
        "Most sequences that wait; n=4 counts as 4",
        unit="sequences",
    ),
    Option(
        "max-waiting-tokens",
        "engine",
        whole(1),
        "Most prompt tokens that wait",
        unit="tokens",
        default="32 full contexts",
    ),
    Option(
        "load",
        "residency",
        one_of(*LoadWhen),
        "When the model is loaded: at the server's start, or when a request needs it",
    ),
    Option(
        "idle-unload",
        "residency",
        seconds(0),
        "Time without a request after which the model is unloaded; 0 keeps it",
        "s",
    ),
    Option(
        "load-wait",
        "residency",
        seconds(0),
        "Longest wait of a request for its model's load, the promise of its class if that is "
        "shorter; then, or at once if the last load took longer, it is told to come back (503)",
        "s",
        default="60 where the model is loaded on demand, else 0",
    ),
    Option(
        "replicas",
        "pool",
        whole(1, 64),
        "Engine processes that serve the model together, each with its weights and KV cache",
    ),
    Option(
        "failover-wait",
        "pool",
        seconds(0),
        "Longest wait of a request whose replica died for another one to go on at",
        "s",
        target="failover_wait_s",
    ),
    *SERVER_OPTIONS,
)
SECTIONS: Mapping[str, str] = {
    "": "Model and process",
    "executor": "Execution",
    "cpu": "CPU executor",
    "engine": "Engine",
    "residency": "Loading and unloading",
    "pool": "Replicas",
    "gateway": "HTTP server",
    "limits": "Limits of one request",
    "rate_limits": "Limits of tenants",
    "supervisor": "Supervision of the engine process",
    "store": "Database",
    "ledger": "Ledger",
}
# What each of several models may say for itself; the rest belongs to the server.
OF_A_MODEL = frozenset(
    option.key
    for option in OPTIONS
    if option.section in {"executor", "cpu", "engine", "residency", "pool"}
    or option.key in {"model", "served_model_name", "executor", "generation_config"}
)
BY_KEY = {option.key: option for option in OPTIONS}
BY_VARIABLE = {option.variable: option for option in OPTIONS}
