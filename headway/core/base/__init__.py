"""Units, errors, metrics and shapes that every other package uses."""
