"""attn."""
