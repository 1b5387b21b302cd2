"""Model families as data: which tensors a file must hold, and how rotary positions turn."""
