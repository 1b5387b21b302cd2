"""All models that one server answers for, and what belongs to each of them alone."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headway.core.base.errors import Unsupported
from headway.core.route.admit import Admitter
from headway.service.gateway.encode import Encoder
from headway.service.gateway.forwarded import ServedUpstream
from headway.service.gateway.gauges import Gauges
from headway.service.gateway.meter import Meter
from headway.service.gateway.model import Directory
from headway.service.gateway.relay import Relay
from headway.service.openai.answer_schema import ModelInfo, ModelList
from headway.service.openai.resolve import unknown_model


class Served(NamedTuple):
    """One model: nothing here is shared with another, so that none waits for another."""

    directory: Directory
    encoder: Encoder
    admitter: Admitter
    relay: Relay
    meter: Meter
    gauges: Gauges

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.directory.model.names[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return self.directory.model.names

    def infos(self) -> list[ModelInfo]:
        """Its entries of /v1/models, one a name."""
        return self.directory.infos()

    def info(self, name: str) -> ModelInfo:
        """Its entry under one of its names."""
        return self.directory.info(name)

    def tick(self) -> None:
        """Sample its engine; about once a second."""
        self.gauges.tick()


AnyServed = Served | ServedUpstream


class Models:
    """Every served model by its names; the first is meant where a request names none."""

    def __init__(self, served: Sequence[AnyServed]) -> None:
        self.all = tuple(served)
        self._by_name = {name: each for each in served for name in each.names}
        self.has_upstreams = any(isinstance(each, ServedUpstream) for each in served)

    @property
    def default(self) -> AnyServed:
        """The first one."""
        return self.all[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of every model."""
        return tuple(self._by_name)

    def find(self, name: str | None) -> AnyServed:
        """The model of that name; raises ModelNotFound, which lists the served ones."""
        if name is None:
            return self.default
        found = self._by_name.get(name)
        if found is None:
            raise unknown_model(name, self.names)
        return found

    def is_own(self, name: str | None) -> bool:
        """Whether only an engine of ours can be meant: its requests are checked as a whole."""
        if not self.has_upstreams:
            return True
        return isinstance(self.default if name is None else self._by_name.get(name), Served)

    def own(self, name: str | None) -> Served:
        """The same as `find`, for what needs a tokenizer here; raises Unsupported for others."""
        found = self.find(name)
        if isinstance(found, Served):
            return found
        raise Unsupported(
            f"{found.name} is answered by another server, whose tokens are not known here.",
            param="model",
        )

    def listing(self) -> bytes:
        """Body of /v1/models."""
        return msgspec.json.encode(
            ModelList(data=[info for each in self.all for info in each.infos()])
        )

    def one(self, name: str) -> bytes:
        """Body of /v1/models/{id}; raises ModelNotFound."""
        return msgspec.json.encode(self.find(name).info(name))
