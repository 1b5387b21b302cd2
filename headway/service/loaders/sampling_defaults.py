"""How a model's makers would sample: read from its files, inside the ranges of the API."""

from collections.abc import Mapping
from typing import NamedTuple

from headway.service.loaders.gguf_metadata import Metadata


class SamplingDefaults(NamedTuple):
    """What a request's open fields may be filled with; None: the makers do not say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def given(self) -> dict[str, float]:
        """Those that the makers say, by the names that the API has for them."""
        return {name: value for name, value in self._asdict().items() if value is not None}


IN_A_FOLDER = {name: name for name in SamplingDefaults._fields}  # of generation_config.json
IN_GGUF = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
# The same as a request may ask for.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1.0, 2.0**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}


def sampling_defaults(values: Metadata, keys: Mapping[str, str]) -> SamplingDefaults:
    """What stands under these keys; raises ModelFileError for what no request could ask for."""
    found = {name: _number(values, key, *RANGES[name]) for name, key in keys.items()}
    top_k = found.pop("top_k")
    return SamplingDefaults(**found, top_k=None if top_k is None else max(0, int(top_k)))


def _number(values: Metadata, key: str, low: float, high: float) -> float | None:
    value = values.values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise values.fail(key, f"is {str(value)[:60]!r}, not a number")
    if not low <= value <= high:
        raise values.fail(key, f"is {value}; it must be from {low:g} to {high:g}")
    return float(value)
