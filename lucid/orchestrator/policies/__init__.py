"""The policies that come with Lucid, each beside its mathematics."""
