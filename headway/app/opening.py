"""The models of a configuration, opened and checked together before anything slow begins."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from headway.app.fleet import OpenedModel, check_names, fitted, opened
from headway.app.model_source import locate
from headway.app.sections import check_against, with_line
from headway.app.settings import Settings
from headway.app.upstreams import OpenedUpstream, open_upstreams
from headway.core.route.table import PoolFacts
from headway.service.control.memory import available_bytes
from headway.service.loaders.model_files import ModelFile, open_model
from headway.service.loaders.progress import ConsoleProgress
from headway.service.upstream.settings import facts_of

AnyOpened = OpenedModel | OpenedUpstream


def open_models(
    models: Sequence[Settings],
    progress: ConsoleProgress,
    running: Mapping[int, OpenedModel] | None = None,
) -> list[AnyOpened]:
    """Each model in its order, with all that is wrong found; blocks. Raises StartError.

    The files of ours are read as far as needed to know that they can be served together here; keys
    and certificates of other servers are read.

    running  models of ours, by their places, that run as they are set here: they are not opened
             again, and what they take of the memory is taken already
    """
    settings = models[0]
    read = with_line(settings.file, lambda: open_upstreams(models))
    others = {each.place: each for each in read}
    before = running or {}
    found: list[AnyOpened] = []
    for index, each in enumerate(models):
        if each.upstream is not None:
            found.append(others[index])
        elif index in before:
            found.append(before[index])
        else:
            with_names, file = located(each, progress)
            found.append(opened(with_names, index, len(models), file))
    own = [each for each in found if isinstance(each, OpenedModel)]
    check_names(own, [each.settings for each in others.values()])
    pools = [facts(each) for each in found]
    check_against(pools, settings.routes, settings.prices, settings.file, settings.tenants)
    fitted([each for each in own if each not in before.values()], available_bytes())
    return found


def facts(model: AnyOpened) -> PoolFacts:
    """What routes have to know of it."""
    if isinstance(model, OpenedModel):
        return PoolFacts(names=model.names)
    return facts_of(model.settings)


def located(settings: Settings, progress: ConsoleProgress) -> tuple[Settings, ModelFile]:
    """The model, fetched first if it is not here; a hub's is called by its id unless named."""
    cache = Path(settings.cache_dir) if settings.cache_dir else None
    path, names = locate(settings.model, progress, cache)
    names = settings.served_model_name or names
    return msgspec.structs.replace(settings, served_model_name=names), open_model(path)
