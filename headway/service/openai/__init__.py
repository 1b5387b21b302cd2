"""OpenAI's API without any I/O: bytes to requests, events to bytes."""
