"""What every executor's sampler has in common."""
