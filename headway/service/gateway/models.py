"""All models that one server answers for, and what belongs to each of them alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headway.core.base.errors import Unsupported
from headway.core.route.admit import Admitter
from headway.core.route.table import RouteTable, unknown
from headway.service.gateway.encode import Encoder
from headway.service.gateway.forwarded import ServedUpstream
from headway.service.gateway.gauges import Gauges
from headway.service.gateway.meter import Meter
from headway.service.gateway.model import Directory
from headway.service.gateway.relay import Relay
from headway.service.observe.prometheus import Sample
from headway.service.openai.answer_schema import ModelInfo, ModelList
from headway.service.wire.transport import ReplicaView


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

    def view(self) -> ReplicaView:
        """How its pool is."""
        return self.directory.view()

    def infos(self) -> list[ModelInfo]:
        """Its entries of /v1/models, one a name."""
        return self.directory.infos()

    def info(self, name: str) -> ModelInfo:
        """Its entry under one of its names."""
        return self.directory.info(name)

    def tick(self) -> None:
        """Sample its engine; about once a second."""
        self.gauges.tick()

    def samples(self) -> Iterator[Sample]:
        """For a scrape."""
        return self.gauges.samples()


AnyServed = Served | ServedUpstream


class Models:
    """Every served model by its names.

    Of a table of routes come further names, the model that stands for each in lists and for its
    tokens, and which one is meant where a request names none; without it, that is the first.
    """

    def __init__(self, served: Sequence[AnyServed], table: RouteTable | None = None) -> None:
        self.views: dict[str, Callable[[], ReplicaView]] = {}  # by each model's first name
        self.replace(served, table)

    def replace(self, served: Sequence[AnyServed], table: RouteTable | None) -> None:
        """These models and further names from now on, and no others."""
        self.all = tuple(served)
        self.has_upstreams = any(isinstance(each, ServedUpstream) for each in served)
        self.has_own = any(isinstance(each, Served) for each in served)
        own = {name: each for each in served for name in each.names}
        routes = {} if table is None else table.names
        self._table = table
        self._routes = [name for name in routes if name not in own]
        self._by_name: dict[str, AnyServed] = own | {
            name: own[routes[name]] for name in self._routes
        }
        first = next((each.name for each in served), "")
        self._default = first if table is None else table.default
        self.views.clear()
        self.views.update({each.name: each.view for each in served})

    def samples(self) -> Iterator[Sample]:
        """For a scrape, with the labels of each."""
        for each in self.all:
            yield from each.meter.exporter.named(each.samples())

    @property
    def default(self) -> AnyServed:
        """The one that is meant where a request names none."""
        return self._by_name[self._default]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of every model."""
        return tuple(self._by_name)

    def find(self, name: str | None, allowed: Sequence[str] = ()) -> AnyServed:
        """The model of that name, or the default; raises ModelNotFound, which lists what there is.

        allowed  names that the caller may use: others are not there for it. Empty: all
        """
        if not allowed:
            found = self.default if name is None else self._by_name.get(name)
            if found is not None:
                return found
        names = [each for each in self._by_name if not allowed or each in allowed]
        if name is None and names:
            name = self._default if self._default in names else names[0]
        if name in names:
            return self._by_name[name]
        said, pool = self._versioned(name or "")
        if said not in names:
            raise unknown(name or "", names)
        return self._by_name[pool]

    def _versioned(self, name: str) -> tuple[str, str]:
        """The name in `NAME@VERSION` and the first name of the pool that it means; "" for none."""
        found = None if self._table is None else self._table.versioned(name)
        return found or ("", "")

    def is_own(self, name: str | None) -> bool:
        """Whether it is the name of a model that an engine of ours answers for."""
        return isinstance(self.default if name is None else self._by_name.get(name), Served)

    def own(self, name: str | None, allowed: Sequence[str] = ()) -> Served:
        """The same as `find`, for what needs a tokenizer here; raises Unsupported for others."""
        found = self.find(name, allowed)
        if isinstance(found, Served):
            return found
        raise Unsupported(
            f"{found.name} is answered by another server, whose tokens are not known here.",
            param="model",
        )

    def listing(self, allowed: Sequence[str] = ()) -> bytes:
        """Body of /v1/models, with what the caller may use."""
        infos = [info for each in self.all for info in each.infos()]
        infos += [self._by_name[name].info(name) for name in self._routes]
        return msgspec.json.encode(
            ModelList(data=[info for info in infos if not allowed or info.id in allowed])
        )

    def one(self, name: str, allowed: Sequence[str] = ()) -> bytes:
        """Body of /v1/models/{id}; raises ModelNotFound."""
        return msgspec.json.encode(self.find(name, allowed).info(name))
