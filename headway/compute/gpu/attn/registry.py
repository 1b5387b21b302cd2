"""Which attention backends there are."""

from collections.abc import Mapping

from headway.compute.gpu.attn.backend import AttentionBackend
from headway.compute.gpu.attn.reference import ReferenceAttention
from headway.compute.gpu.attn.torch_sdpa import SdpaAttention

BACKENDS: Mapping[str, AttentionBackend] = {
    backend.name: backend for backend in (SdpaAttention(), ReferenceAttention())
}
