"""Commands that learn from a cluster's past: models, settings, the report of the week."""
