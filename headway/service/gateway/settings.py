"""Settings of the HTTP side: limits, times and keys. Resolved before they get here."""

import msgspec


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator may set about serving HTTP; times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes any free one
    api_key: tuple[str, ...] = ()  # empty: /v1 is open
    admin_key: tuple[str, ...] = ()  # empty: there is no /admin
    admin_listen: str | None = None  # HOST:PORT of /admin alone; None: it is on the one above
    tenant: tuple[str, ...] = ()  # NAME:CLASS[*WEIGHT]:KEY; see core.tenancy.tenant
    slo_ttft: tuple[str, ...] = ()  # CLASS=SECONDS; empty: the defaults once there are tenants
    shutdown_timeout: float = 30.0  # for running requests, after SIGTERM
    keepalive_interval: float = 15.0  # between comments on an idle stream; 0 sends none
    heartbeat_timeout: float = 15.0  # without a beat of a client that promised to send some
    write_timeout: float = 30.0  # for a reader that does not read
    body_timeout: float = 30.0  # from the end of the header to the end of the body
    header_timeout: float = 10.0  # from the first byte (or the connection) to its end
    idle_timeout: float = 75.0  # of a kept connection between two requests
    live_timeout: float = 60.0  # without engine progress, after which /health says no
    max_body_bytes: int = 4 * 1024 * 1024
    max_header_bytes: int = 64 * 1024  # request line and header together
    max_header_count: int = 128
    max_connections: int = 4096
    encode_threads: int = 2  # that tokenize and render templates
