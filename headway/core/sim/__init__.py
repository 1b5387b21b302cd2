"""The engine under a simulated clock: the same decisions, without computing anything."""
