"""The size classifier's weights, read from the package."""

from importlib.resources import files

import msgspec

from headway.core.base.errors import StartError
from headway.core.route.size import ClassifierSizer, ScoreSizer, SizeModel, Sizer
from headway.core.route.table import AutoSettings

WEIGHTS = "size_model.json"  # beside core/route/size.py; made by tools/train_classifier.py


def make_sizer(settings: AutoSettings) -> Sizer:
    """What `model: auto` goes by; raises StartError when the weights are not of this release."""
    if settings.method == "score":
        return ScoreSizer(settings)
    return ClassifierSizer(settings, packaged_model())


def packaged_model() -> SizeModel:
    """The weights that ship with the package."""
    data = files("headway.core.route").joinpath(WEIGHTS).read_bytes()
    try:
        return msgspec.json.decode(data, type=SizeModel)
    except msgspec.MsgspecError as error:
        raise StartError(f"{WEIGHTS}: {error}") from None
