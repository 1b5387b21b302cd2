"""From token ids to text that may leave: streamer and stop strings."""
