"""Every decision: which blocks, which sequences, which replica. No tensors, no I/O, no clock."""
