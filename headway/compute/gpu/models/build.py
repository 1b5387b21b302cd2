"""From tensors of a file to a decoder's weights on the device."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from headway.compute.arch.family import Part, TensorSpec
from headway.compute.arch.rope import inverse_frequencies, local_frequencies, rotation_scale
from headway.compute.formats.opening import open_weights
from headway.compute.gpu.models.decoder import (
    Decoder,
    DecoderShape,
    DecoderWeights,
    LayerWeights,
)
from headway.compute.gpu.ops.linear.head import Head, head_dtype
from headway.compute.gpu.ops.linear.registry import Linear, make_linear
from headway.core.base.model_card import ModelCard

Progress = Callable[[int, int], None]


class DecoderBuilder:
    """Reads one file once, tensor by tensor, and counts what it took."""

    def __init__(
        self,
        card: ModelCard,
        specs: Iterable[TensorSpec],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Open and check the file; raises ModelFileError before any memory is taken."""
        self._card = card
        self._dtype = dtype
        self._device = device
        specs = tuple(specs)
        self._file = open_weights(card, specs)
        self._specs = {
            (spec.layer, spec.part, spec.is_bias): spec for spec in specs if spec in self._file
        }
        self._total_bytes = sum(self._file.num_bytes(spec) for spec in specs)
        self._read_bytes = 0
        self.weight_bytes = 0  # taken by what was built so far

    def build(self, progress: Progress) -> Decoder:
        """Read everything; `progress` is told bytes read and bytes of the file's tensors."""
        card = self._card
        progress(0, self._total_bytes)
        factors = self._specs.get((None, Part.ROPE_FACTORS, False))
        frequencies = inverse_frequencies(
            card, None if factors is None else self._file.read(factors)
        )
        local = local_frequencies(card)
        stored = head_dtype(self._dtype, self._device)
        is_tied = (None, Part.HEAD, False) not in self._specs
        embedding = self._tensor(None, Part.EMBEDDING, stored if is_tied else self._dtype)
        head = embedding if is_tied else self._tensor(None, Part.HEAD, stored)
        layers = []
        for layer in range(card.num_layers):
            layers.append(self._layer(layer))
            progress(self._read_bytes, self._total_bytes)
        output_norm = self._tensor(None, Part.OUTPUT_NORM, torch.float32)
        progress(self._total_bytes, self._total_bytes)
        weights = DecoderWeights(
            embedding=embedding,
            layers=tuple(layers),
            output_norm=output_norm,
            head=Head(head),
            inverse_frequencies=torch.from_numpy(frequencies).to(self._device),
            local_frequencies=None if local is None else torch.from_numpy(local).to(self._device),
            rotation_scale=rotation_scale(card),
        )
        shape = DecoderShape(
            num_heads=card.num_heads,
            num_kv_heads=card.num_kv_heads,
            head_dim=card.head_dim,
            norm_eps=card.norm_eps,
            score_scale=card.score_scale,
            embedding_scale=card.embedding_scale,
            activation=card.activation,
            dtype=self._dtype,
        )
        return Decoder(shape, weights)

    def _layer(self, layer: int) -> LayerWeights:
        return LayerWeights(
            attention_norm=self._tensor(layer, Part.ATTENTION_NORM, torch.float32),
            qkv=self._linear(layer, (Part.QUERY, Part.KEY, Part.VALUE)),
            query_norm=self._norm(layer, Part.QUERY_NORM),
            key_norm=self._norm(layer, Part.KEY_NORM),
            attention_output=self._linear(layer, (Part.ATTENTION_OUTPUT,)),
            post_attention_norm=self._norm(layer, Part.POST_ATTENTION_NORM),
            mlp_norm=self._tensor(layer, Part.MLP_NORM, torch.float32),
            gate_up=self._linear(layer, (Part.GATE, Part.UP)),
            down=self._linear(layer, (Part.DOWN,)),
            post_mlp_norm=self._norm(layer, Part.POST_MLP_NORM),
            window=self._card.window_of(layer),
            is_local=self._card.is_local(layer),
        )

    def _norm(self, layer: int, part: Part) -> Tensor | None:
        """A norm that not every family has."""
        if (layer, part, False) not in self._specs:
            return None
        return self._tensor(layer, part, torch.float32)

    def _linear(self, layer: int, parts: Sequence[Part]) -> Linear:
        """Matrices that share their input, stacked; a bias that a part lacks is zero."""
        weights = [self._specs[layer, part, False] for part in parts]
        biases = [self._specs.get((layer, part, True)) for part in parts]
        weight = self._stack([(spec, spec.shape[0]) for spec in weights])
        bias = None
        if any(biases):
            sized = zip(biases, weights, strict=True)
            bias = self._stack([(spec, matrix.shape[0]) for spec, matrix in sized])
        return make_linear(weight, bias)

    def _stack(self, specs: Sequence[tuple[TensorSpec | None, int]]) -> Tensor:
        """Read straight into one tensor, so that no more than one part exists twice."""
        rows = sum(size for _, size in specs)
        inner = next(spec.shape[1:] for spec, _ in specs if spec is not None)
        stacked = torch.zeros((rows, *inner), dtype=self._dtype, device=self._device)
        begin = 0
        for spec, size in specs:
            if spec is not None:
                stacked[begin : begin + size] = self._read(spec)
            begin += size
        self.weight_bytes += stacked.nbytes
        return stacked

    def _tensor(self, layer: int | None, part: Part, dtype: torch.dtype) -> Tensor:
        tensor = self._read(self._specs[layer, part, False]).to(self._device, dtype)
        self.weight_bytes += tensor.nbytes
        return tensor

    def _read(self, spec: TensorSpec) -> Tensor:
        self._read_bytes += self._file.num_bytes(spec)
        return torch.from_numpy(self._file.read(spec))
