"""How jobs share GPUs: share scores, pair speeds, and what is remembered of pairs."""
