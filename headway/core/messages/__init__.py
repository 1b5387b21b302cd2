"""The types that travel: along a request's path, into a step, and about health."""
