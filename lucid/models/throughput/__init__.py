"""How many GPUs will be asked for."""
