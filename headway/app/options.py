"""Every option of `headway serve`, declared once.

Flags, environment variables, keys of the file, the help text and docs/settings.md all
come from `OPTIONS`. An option's place in the settings tree is `section`.`field`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headway.app.readers import (
    context,
    one_of,
    seconds,
    secrets,
    share,
    size,
    size_or_none,
    switch,
    targets,
    tenants,
    text,
    texts,
    whole,
)
from headway.compute.cpu.settings import AUTO, Isa, KvDtype, Quantization
from headway.compute.gpu.runner.settings import AttentionChoice, DeviceChoice, DtypeChoice
from headway.core.fleet.residency import LoadWhen

Value = str | int | float | bool | tuple[str, ...] | None


class Option(NamedTuple):
    """One setting; `read` turns text or a file's value into the field's value.

    `read` raises ValueError whose message completes "<where>: ...".
    """

    name: str  # the flag without its dashes
    section: str
    read: Callable[[object], Value]
    help: str
    unit: str = ""
    default: str = ""  # how the docs say it, where the struct's own default does not
    target: str = ""  # the struct's field, where its name is not the flag's
    takes_many: bool = False
    is_switch: bool = False

    @property
    def key(self) -> str:
        """Name in a file and in what `merge` is given."""
        return self.name.replace("-", "_")

    @property
    def field(self) -> str:
        """Name in the section's struct."""
        return self.target or self.key

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return f"HEADWAY_{self.key.upper()}"


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
        "Threads that compute",
        default="one a core that this process may use",
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
    Option("host", "gateway", text, "Address to listen on; 0.0.0.0 for every IPv4 one"),
    Option("port", "gateway", whole(0, 65535), "Port to listen on; 0 takes a free one"),
    Option(
        "api-key",
        "gateway",
        secrets,
        "Keys that clients must send as a bearer token for /v1",
        default="none: open",
        takes_many=True,
    ),
    Option(
        "tenant",
        "gateway",
        tenants,
        "Tenants with their keys, NAME:CLASS:KEY or NAME:CLASS*WEIGHT:KEY; "
        "classes are vip, standard and internal",
        default="none: everybody is standard",
        takes_many=True,
    ),
    Option(
        "slo-ttft",
        "gateway",
        targets,
        "Time to the first token promised to a class, CLASS=SECONDS or CLASS=none; what would "
        "come later is refused at once",
        default="vip=0.5, standard=3 once there are tenants",
        takes_many=True,
    ),
    Option(
        "shutdown-timeout",
        "gateway",
        seconds(0),
        "How long running requests may go on after SIGTERM",
        "s",
    ),
    Option(
        "keepalive-interval",
        "gateway",
        seconds(0),
        "Silence on a stream after which a comment is sent; 0 sends none",
        "s",
    ),
    Option(
        "write-timeout",
        "gateway",
        seconds(0.01),
        "How long a client may leave its answer unread before it counts as gone",
        "s",
    ),
    Option(
        "body-timeout", "gateway", seconds(0.01), "Time for a request's body to arrive (408)", "s"
    ),
    Option(
        "header-timeout",
        "gateway",
        seconds(0.01),
        "Time for a request's header to arrive (408)",
        "s",
    ),
    Option(
        "idle-timeout", "gateway", seconds(0.01), "Life of an idle connection between requests", "s"
    ),
    Option(
        "live-timeout",
        "gateway",
        seconds(1),
        "Time without progress of the engine after which /health is 503",
        "s",
    ),
    Option("max-body-bytes", "gateway", size, "Largest request body (413)", "bytes"),
    Option("max-header-bytes", "gateway", size, "Largest request header (431)", "bytes"),
    Option("max-header-count", "gateway", whole(1), "Most header lines of a request (431)"),
    Option("max-connections", "gateway", whole(1), "Most open connections (503)"),
    Option("encode-threads", "gateway", whole(1, 64), "Threads that tokenize prompts"),
    Option("max-messages", "limits", whole(1), "Most messages of a chat (400)"),
    Option("max-prompts", "limits", whole(1), "Most prompts in one completion request (400)"),
    Option("max-choices", "limits", whole(1), "Largest n (400)"),
    Option("max-total-choices", "limits", whole(1), "Most prompts times n (400)"),
    Option("max-stop-strings", "limits", whole(0), "Most stop strings (400)"),
    Option("max-stop-chars", "limits", whole(1), "Longest stop string (400)", "characters"),
    Option("max-stop-token-ids", "limits", whole(0), "Most stop token ids (400)"),
    Option("max-logit-bias", "limits", whole(0), "Most entries of logit_bias (400)"),
    Option("max-bad-words", "limits", whole(0), "Most entries of bad_words (400)"),
    Option("max-nesting", "limits", whole(1), "Deepest nesting in tool calls (400)", "levels"),
    Option(
        "max-answer-entries",
        "limits",
        whole(1),
        "Most log-probabilities in one answer, candidates counted (400)",
    ),
    Option("max-name-chars", "limits", whole(1), "Longest model, user, cache_salt (400)"),
    Option(
        "stall-timeout",
        "supervisor",
        seconds(0.1),
        "Pending work without a step, after which the server is not ready",
        "s",
        target="stall_after_s",
    ),
    Option(
        "kill-timeout",
        "supervisor",
        seconds(0.1),
        "How long the engine may stay stalled before it is killed and started again",
        "s",
        target="kill_after_s",
    ),
    Option(
        "load-timeout",
        "supervisor",
        seconds(0.1),
        "Silence of the engine while it loads, after which it is killed",
        "s",
        target="load_silence_s",
    ),
)
SECTIONS: Mapping[str, str] = {
    "": "Model and process",
    "executor": "Execution",
    "cpu": "CPU executor",
    "engine": "Engine",
    "residency": "Loading and unloading",
    "gateway": "HTTP server",
    "limits": "Limits of one request",
    "supervisor": "Supervision of the engine process",
}
# What each of several models may say for itself; the rest belongs to the server.
OF_A_MODEL = frozenset(
    option.key
    for option in OPTIONS
    if option.section in {"executor", "cpu", "engine", "residency"}
    or option.key in {"model", "served_model_name", "executor", "generation_config"}
)
BY_KEY = {option.key: option for option in OPTIONS}
BY_VARIABLE = {option.variable: option for option in OPTIONS}
