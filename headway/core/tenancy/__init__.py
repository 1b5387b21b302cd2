"""Who asks, how important that is, and how capacity is shared between them."""
