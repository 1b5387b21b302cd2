"""Options of the server around the engines: HTTP, keys, limits of one request, supervision."""

from headway.app.option import Option
from headway.app.readers import seconds, secrets, size, targets, tenants, text, whole

SERVER_OPTIONS: tuple[Option, ...] = (
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
        "heartbeat-timeout",
        "gateway",
        seconds(0.1),
        "Silence after which a client that named its connection, to beat on it, counts as gone",
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
