"""Operations on tensors: a readable reference each, fast variants beside it."""
