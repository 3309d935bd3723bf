"""The policies that come with Lucid."""
