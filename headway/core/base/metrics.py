"""The catalogue of every metric: what is exposed, under which name, and when it alarms.

Names are exact as scraped. Three families stand beside each other: the project's own
(`inference_*`, `kv_cache_*`, ...; rates among them are gauges over the last 60 s), vLLM's
(`vllm:*`, so that dashboards and autoscalers made for vLLM work), and what only this
server knows (`headway_*`). `docs/metrics.md` is generated from this file.
"""

from enum import Enum

import msgspec

RATE_WINDOW_S = 60.0  # length of time that the rate gauges look back over

MS_BUCKETS = (
    *(5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 300.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0),
    *(3000.0, 5000.0, 7500.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0),
)
SECOND_BUCKETS = tuple(ms / 1000.0 for ms in MS_BUCKETS)
GAP_BUCKETS = (
    *(0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2),
    *(0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
OWN = ("model",)
VLLM = ("model_name", "engine")


class Kind(Enum):
    """How a metric behaves between two scrapes."""

    COUNTER = "counter"  # only grows
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Outcome(Enum):
    """How a request to a generating endpoint ended; each request has exactly one."""

    OK = "ok"
    CANCELLED = "cancelled"  # the client left
    INVALID = "invalid"  # 4xx: the client must change the request
    UNAUTHORIZED = "unauthorized"
    REJECTED_LIMIT = "rejected_limit"  # a limit of its tenant's own
    REJECTED_QUEUE_FULL = "rejected_queue_full"
    REJECTED_DEADLINE = "rejected_deadline"  # its first token would have come too late
    REJECTED_SHUTTING_DOWN = "rejected_shutting_down"
    REJECTED_NOT_READY = "rejected_not_ready"  # no engine can answer now
    ERROR = "error"  # it was taken and then failed
    LOST = "lost"  # the gateway died under it; in the ledger only


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One entry: everything that the exporter, the docs and the alert rules need."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = OWN
    unit: str = ""
    buckets: tuple[float, ...] = ()
    alert: str = ""  # condition over the metric that should wake someone


FIRST_TOKEN_MS = Metric(
    name="inference_first_token_latency_ms",
    kind=Kind.HISTOGRAM,
    help="From request received to first token known at the server; once a request, queue included",
    unit="ms",
    buckets=MS_BUCKETS,
    alert="p99 > 2000",
)
E2E_MS = Metric(
    name="inference_e2e_latency_ms",
    kind=Kind.HISTOGRAM,
    help="From request received to its last token, for requests that finished",
    unit="ms",
    buckets=MS_BUCKETS,
    alert="p99 > 30000",
)
MEMORY_UTILIZATION = Metric(
    name="gpu_memory_utilization",
    kind=Kind.GAUGE,
    help="Memory of weights and used KV blocks over the budget for both; also on CPUs",
    unit="ratio 0 to 1",
    alert="< 0.7 or > 0.95",
)
KV_CACHE_HIT_RATE = Metric(
    name="kv_cache_hit_rate",
    kind=Kind.GAUGE,
    help="Prompt tokens read from the prefix cache over those looked up, in the last 60 s",
    unit="ratio 0 to 1",
    alert="< 0.3",
)
BATCH_SIZE_AVG = Metric(
    name="batch_size_avg",
    kind=Kind.GAUGE,
    help="Mean number of sequences in a step, over the last 60 s; 0 without steps",
    unit="sequences",
    alert="< 10",
)
QUEUE_LENGTH = Metric(
    name="request_queue_length",
    kind=Kind.GAUGE,
    help="Sequences taken from clients that no step has computed yet",
    unit="sequences",
    alert="> 1000: scale out",
)
GENERATION_THROUGHPUT = Metric(
    name="token_generation_throughput",
    kind=Kind.GAUGE,
    help="Tokens generated a second, over the last 60 s",
    unit="tokens/s",
    alert="drops by more than 20 % against the hour before",
)
PREEMPTIONS = Metric(
    name="request_preemption_count",
    kind=Kind.COUNTER,
    help="Sequences stopped to make room for others",
    unit="sequences",
    alert="> 100 a minute",
)

VLLM_RUNNING = Metric(
    name="vllm:num_requests_running",
    kind=Kind.GAUGE,
    help="Sequences in the running batch",
    labels=VLLM,
    unit="sequences",
)
VLLM_WAITING = Metric(
    name="vllm:num_requests_waiting",
    kind=Kind.GAUGE,
    help="Sequences that wait inside the engine",
    labels=VLLM,
    unit="sequences",
)
VLLM_KV_USAGE = Metric(
    name="vllm:kv_cache_usage_perc",
    kind=Kind.GAUGE,
    help="KV blocks in use over all blocks; blocks kept only for the prefix cache are free",
    labels=VLLM,
    unit="ratio 0 to 1",
)
VLLM_PREFIX_QUERIES = Metric(
    name="vllm:prefix_cache_queries_total",
    kind=Kind.COUNTER,
    help="Prompt tokens looked up in the prefix cache",
    labels=VLLM,
    unit="tokens",
)
VLLM_PREFIX_HITS = Metric(
    name="vllm:prefix_cache_hits_total",
    kind=Kind.COUNTER,
    help="Prompt tokens found in the prefix cache",
    labels=VLLM,
    unit="tokens",
)
VLLM_PROMPT_TOKENS = Metric(
    name="vllm:prompt_tokens_total",
    kind=Kind.COUNTER,
    help="Prompt tokens of requests that got a first token, cached ones included",
    labels=VLLM,
    unit="tokens",
)
VLLM_GENERATION_TOKENS = Metric(
    name="vllm:generation_tokens_total",
    kind=Kind.COUNTER,
    help="Tokens generated for clients; agrees with the usage of the answers",
    labels=VLLM,
    unit="tokens",
)
VLLM_PREEMPTIONS = Metric(
    name="vllm:num_preemptions_total",
    kind=Kind.COUNTER,
    help="Sequences stopped to make room for others",
    labels=VLLM,
    unit="sequences",
)
VLLM_SUCCESS = Metric(
    name="vllm:request_success_total",
    kind=Kind.COUNTER,
    help="Requests that the engine ended, by reason: stop, length, abort, error",
    labels=(*VLLM, "finished_reason"),
    unit="requests",
)
VLLM_FIRST_TOKEN = Metric(
    name="vllm:time_to_first_token_seconds",
    kind=Kind.HISTOGRAM,
    help="From request received to first token known at the server, queue included",
    labels=VLLM,
    unit="s",
    buckets=SECOND_BUCKETS,
)
VLLM_INTER_TOKEN = Metric(
    name="vllm:inter_token_latency_seconds",
    kind=Kind.HISTOGRAM,
    help="Between two tokens of one choice, by the engine's clock",
    labels=VLLM,
    unit="s",
    buckets=GAP_BUCKETS,
)
VLLM_E2E = Metric(
    name="vllm:e2e_request_latency_seconds",
    kind=Kind.HISTOGRAM,
    help="From request received to its last token, for requests that finished",
    labels=VLLM,
    unit="s",
    buckets=SECOND_BUCKETS,
)
VLLM_QUEUE_TIME = Metric(
    name="vllm:request_queue_time_seconds",
    kind=Kind.HISTOGRAM,
    help="From arrival at the engine to first being planned",
    labels=VLLM,
    unit="s",
    buckets=SECOND_BUCKETS,
)
VLLM_PREFILL_TIME = Metric(
    name="vllm:request_prefill_time_seconds",
    kind=Kind.HISTOGRAM,
    help="From first being planned to the first token",
    labels=VLLM,
    unit="s",
    buckets=SECOND_BUCKETS,
)
VLLM_DECODE_TIME = Metric(
    name="vllm:request_decode_time_seconds",
    kind=Kind.HISTOGRAM,
    help="From the first token to the end",
    labels=VLLM,
    unit="s",
    buckets=SECOND_BUCKETS,
)
VLLM_CACHE_CONFIG = Metric(
    name="vllm:cache_config_info",
    kind=Kind.GAUGE,
    help="Always 1; its labels say how the KV cache is made",
    labels=(*VLLM, "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
)

REQUESTS = Metric(
    name="headway_requests_total",
    kind=Kind.COUNTER,
    help="Requests to the generating endpoints, by outcome; the sum is all that were received",
    labels=("model", "endpoint", "outcome"),
    unit="requests",
)
IN_FLIGHT = Metric(
    name="headway_requests_in_flight",
    kind=Kind.GAUGE,
    help="Requests received at the generating endpoints and not yet ended",
    unit="requests",
)
WAITING_TOKENS = Metric(
    name="headway_waiting_prompt_tokens",
    kind=Kind.GAUGE,
    help="Prompt tokens of the requests that no step has computed yet",
    unit="tokens",
)
QUEUE_LIMIT_CHOICES = Metric(
    name="headway_queue_limit_sequences",
    kind=Kind.GAUGE,
    help="Most sequences that may run and wait together",
    unit="sequences",
)
QUEUE_LIMIT_TOKENS = Metric(
    name="headway_queue_limit_prompt_tokens",
    kind=Kind.GAUGE,
    help="Most prompt tokens that may wait",
    unit="tokens",
)
PRESSURE_RUNG = Metric(
    name="headway_pressure_rung",
    kind=Kind.GAUGE,
    help="Rung of the pressure ladder: 0 normal, 1 swap, 2 hold, 3 refuse best effort",
    alert=">= 2 for 5 minutes",
)
WAITING_BY_CLASS = Metric(
    name="headway_waiting_sequences",
    kind=Kind.GAUGE,
    help="Sequences that wait in the engine, preempted ones included, by class",
    labels=(*OWN, "slo_class"),
    unit="sequences",
)
PREFILL_RATE = Metric(
    name="headway_prefill_tokens_per_second",
    kind=Kind.GAUGE,
    help="Prompt tokens computed a second of the steps that compute any, lately",
    unit="tokens/s",
)
BEST_EFFORT_WAIT = Metric(
    name="headway_best_effort_wait_seconds",
    kind=Kind.GAUGE,
    help="How long a best-effort request that came now would wait for its first token",
    unit="s",
)
CLASS_PREEMPTIONS = Metric(
    name="headway_class_preemptions_total",
    kind=Kind.COUNTER,
    help="Sequences stopped for a request of a more important class; part of "
    "request_preemption_count, and told by class and kind in headway_class_preempted_total",
    unit="sequences",
)
CACHED_TOKENS = Metric(
    name="headway_cached_prompt_tokens_total",
    kind=Kind.COUNTER,
    help="Prompt tokens of finished requests that came from the prefix cache, as in usage",
    unit="tokens",
)
PREFIX_HOST_HITS = Metric(
    name="headway_prefix_cache_host_hits_total",
    kind=Kind.COUNTER,
    help="Prompt tokens found in the prefix cache that came back from the host tier",
    unit="tokens",
)
PREFIX_MISSES = Metric(
    name="headway_prefix_cache_misses_total",
    kind=Kind.COUNTER,
    help="Requests that started with part of their prompt not cached, by reason: differs, "
    "evicted, other_salt, no_room, not_shared",
    labels=(*OWN, "reason"),
    unit="requests",
)
SWAPPED_OUT = Metric(
    name="headway_kv_swapped_out_blocks_total",
    kind=Kind.COUNTER,
    help="KV blocks copied to the host tier",
    unit="blocks",
)
SWAPPED_IN = Metric(
    name="headway_kv_swapped_in_blocks_total",
    kind=Kind.COUNTER,
    help="KV blocks copied back from the host tier",
    unit="blocks",
)
SWAP_PREEMPTIONS = Metric(
    name="headway_preemptions_swapped_total",
    kind=Kind.COUNTER,
    help="Sequences stopped whose blocks were kept in the host tier; the others compute again",
    unit="sequences",
)
HOST_BLOCKS_USED = Metric(
    name="headway_kv_host_blocks_used",
    kind=Kind.GAUGE,
    help="Blocks of the host tier that hold something",
    unit="blocks",
)
HOST_BLOCKS_TOTAL = Metric(
    name="headway_kv_host_blocks",
    kind=Kind.GAUGE,
    help="Most blocks of the host tier; their memory is taken as it is needed",
    unit="blocks",
)
ENGINE_STEPS = Metric(
    name="headway_engine_steps_total",
    kind=Kind.COUNTER,
    help="Steps the engine has completed: its progress",
    unit="steps",
)
ENGINE_TOKENS = Metric(
    name="headway_engine_generated_tokens_total",
    kind=Kind.COUNTER,
    help="Tokens the engine has generated, those for cancelled requests included",
    unit="tokens",
)
ENGINE_COMPUTED = Metric(
    name="headway_engine_computed_prompt_tokens_total",
    kind=Kind.COUNTER,
    help="Prompt tokens that were really computed, not read from the prefix cache",
    unit="tokens",
)
ENGINE_WASTED = Metric(
    name="headway_engine_wasted_rows_total",
    kind=Kind.COUNTER,
    help="Rows computed for sequences that had ended in the step before",
    unit="rows",
)
ENGINE_RESTARTS = Metric(
    name="headway_engine_restarts_total",
    kind=Kind.COUNTER,
    help="Times the engine process was started again after a death",
    unit="restarts",
    alert="> 0 in 10 minutes",
)
ENGINE_READY = Metric(
    name="headway_engine_ready",
    kind=Kind.GAUGE,
    help="1 when the engine can answer now, else 0",
    alert="0 for 1 minute",
)
UNKNOWN_FIELDS = Metric(
    name="headway_unknown_request_fields_total",
    kind=Kind.COUNTER,
    help="Fields of request bodies that this server does not know and ignored",
    unit="fields",
)

CATALOGUE: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
