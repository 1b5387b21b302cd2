"""A gateway with limits in Redis, to be killed.

python -m tests.fault.limited_gateway URL LIMITS MODE

LIMITS is JSON of the limits of the tenant acme, whose key is sk-acme. MODE is "answer" (every
request at once) or "hold" (one token, and then nothing). Prints its port.
"""

import asyncio
import os
import sys

import msgspec

from headway.app.limits import TenantLimits
from headway.core.engine.settings import EngineSettings
from headway.core.messages.path import EngineRequest
from headway.core.tenancy.limits import Limits
from headway.service.gateway.limit_settings import RateLimitSettings
from headway.service.gateway.settings import GatewaySettings
from tests.unit.service.gateway.fakes import FakeReplica, say_hello, site

KEY = "sk-acme"


def hold(replica: FakeReplica, request: EngineRequest) -> None:
    """A script: one token, and no end."""
    replica.start(request.id)
    replica.say(request.id, "x")


async def main(url: str, limits: Limits, mode: str) -> None:
    """Serve until killed."""
    rates = RateLimitSettings(redis_url=url, tenants={"acme": limits}, redis_timeout=20.0)
    kept = TenantLimits(rates, f"gateway-{os.getpid()}")
    kept.start()
    replica = FakeReplica()
    replica.script = say_hello if mode == "answer" else hold
    async with site(
        settings=GatewaySettings(tenant=(f"acme:standard:{KEY}",)),
        replica=replica,
        engine=EngineSettings(max_num_seqs=4096),  # so that nothing but the limits refuses
        rate_limits=kept.table,
        limit_store=kept.store,
    ) as here:
        sys.stdout.write(f"{here.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Limits), sys.argv[3]))
