"""Applies what a request adds to its logits."""

import torch
from torch import Tensor

from headway.compute.sampling.adjustments import MASKED, Adjustment


def adjust_(logits: Tensor, change: Adjustment) -> None:
    """Change one row [V] in place: penalties, then bias, then the masks."""
    device = logits.device
    if len(change.repeated):
        seen = torch.from_numpy(change.repeated).to(device)
        values, factor = logits[seen], change.repetition
        logits[seen] = torch.where(values > 0, values / factor, values * factor)
    if len(change.lowered):
        where = torch.from_numpy(change.lowered).to(device)
        logits[where] -= torch.from_numpy(change.lowered_by).to(device)
    if len(change.biased):
        where = torch.from_numpy(change.biased).to(device)
        logits.index_add_(0, where, torch.from_numpy(change.bias).to(device))
    if len(change.allowed):
        where = torch.from_numpy(change.allowed).to(device)
        kept = logits[where]
        logits.fill_(MASKED)
        logits[where] = kept
    if len(change.masked):
        logits.index_fill_(0, torch.from_numpy(change.masked).to(device), MASKED)
