"""What each model brings, made into its own parts once."""

from headway.core.engine.settings import EngineSettings
from headway.service.gateway.encode import Encoder
from headway.service.gateway.model import ServedModel
from headway.service.gateway.serving import ModelNeeds, Serving
from headway.service.gateway.totals import PoolTotals
from headway.service.observe.catalogue import EVERYTHING
from headway.service.observe.clock import SystemClock
from headway.service.observe.prometheus import Exporter
from headway.service.openai.limits import ApiLimits
from tests.unit.service.gateway.fakes import CharTokenizer, FakeReplica, JoiningTemplate


def needs(name: str) -> ModelNeeds:
    """A model of that name, over a pool of its own."""
    return ModelNeeds(
        model=ServedModel(names=(name,), root="root", vocab_size=8, context_length=64, created=1),
        engine=EngineSettings(),
        encoder=Encoder(CharTokenizer(), JoiningTemplate(), 1),
        pool=FakeReplica(),
        totals=PoolTotals(),
    )


def serving() -> Serving:
    """One that has made nothing yet."""
    return Serving(Exporter(EVERYTHING, {}), SystemClock(), None, ApiLimits())


def test_a_model_is_made_once_until_it_is_forgotten() -> None:
    here, model = serving(), needs("m")
    made = here.of(model)
    assert here.of(model) is made
    here.forget(model)
    assert here.of(model) is not made


def test_a_model_goes_on_with_the_counters_of_the_one_of_its_name_not_with_its_queue() -> None:
    here = serving()
    old, new, other = (here.of(needs(name)) for name in ("m", "m", "other"))
    assert new is not old
    assert new.meter is old.meter
    assert new.admitter is not old.admitter
    assert other.meter is not old.meter
