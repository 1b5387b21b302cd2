"""The served model as clients see it: its names and what a request is checked against."""

from collections.abc import Callable

import msgspec

from headway.service.loaders.sampling_defaults import SamplingDefaults
from headway.service.openai.answer_schema import ModelInfo
from headway.service.openai.resolve import ModelFacts
from headway.service.wire.transport import ReplicaState, ReplicaView

ASLEEP = frozenset({ReplicaState.UNLOADED, ReplicaState.UNLOADING})


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the model without its engine."""

    names: tuple[str, ...]  # the first is the default and the one that is shown
    root: str  # its name in its file
    vocab_size: int
    context_length: int  # tokens; the engine may have less
    created: int  # Unix time at which this server began to serve it
    sampling: SamplingDefaults = SamplingDefaults()  # for what requests leave open


class Directory:
    """Answers questions about the model, with what its running engine has said of itself."""

    def __init__(self, model: ServedModel, view: Callable[[], ReplicaView]) -> None:
        self.model = model
        self._view = view

    def view(self) -> ReplicaView:
        """Its pool at this moment."""
        return self._view()

    def facts(self) -> ModelFacts:
        """What a request is checked against; raises ReplicaNotReady before the engine loaded."""
        view = self._view()
        if view.hello is None:
            raise view.refusal()
        return self._facts(view.hello.max_model_len)

    def known(self) -> ModelFacts:
        """The same where the engine is not needed: an unloaded one has the context it is set to.

        Raises ReplicaNotReady before the engine loaded for the first time.
        """
        if self._view().state in ASLEEP:
            return self._facts(self.model.context_length)
        return self.facts()

    def infos(self) -> list[ModelInfo]:
        """Its entries of /v1/models, one a name."""
        return [self.info(name) for name in self.model.names]

    def info(self, name: str) -> ModelInfo:
        """Its entry under one of its names."""
        view = self._view()
        return ModelInfo(
            id=name,
            created=self.model.created,
            max_model_len=view.hello.max_model_len if view.hello else self.model.context_length,
            root=self.model.root,
            state=view.state.value,
            sampling_defaults=self.model.sampling.given(),
        )

    def _facts(self, max_model_len: int) -> ModelFacts:
        return ModelFacts(
            names=self.model.names,
            max_model_len=max_model_len,
            vocab_size=self.model.vocab_size,
            sampling=self.model.sampling,
        )
