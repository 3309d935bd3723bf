"""Commands for whoever runs a site."""
