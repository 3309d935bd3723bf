"""How long a job will wait, told from logs alone, where there is no queue to plan ahead with."""
