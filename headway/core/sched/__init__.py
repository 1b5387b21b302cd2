"""Which sequence computes which tokens in the next step."""
