"""What other tools and sites write into a job's comment. ``{}`` is where a user's words for Lucid go."""

COMMENTS = (
    "{}",
    "project=alpha;{};grant=0815",  # a site's own pairs
    "rule_train_wildcards_seed=3 {}",  # Snakemake
    "Nextflow nf-TRAIN_(3),{}",
    "ondemand/sys/dashboard/batch_connect/sys/jupyter {}",  # Open OnDemand
    "Team=vision,CostCenter=42, {}",  # tags for bills
    'wandb {} https://example.org/runs/3?x="1"&y=2',
    "für Müller: 50 % {}",
)
LOOKALIKES = (
    "not-lucid:exclusive", "lucid:exclusively", "lucid:exclusive=1", "see lucid:exclusive.",
    '{"lucid:exclusive": true}', "LUCID:EXCLUSIVE",
)  # fmt: skip
"""None of these is the word ``lucid:exclusive``."""
