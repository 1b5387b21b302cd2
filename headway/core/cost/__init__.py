"""What a step costs: the quantities its time depends on, and models of that time."""
