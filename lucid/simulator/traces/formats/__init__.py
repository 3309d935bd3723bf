"""The formats of traces: ``ABOUT`` says what one is, ``read`` reads it; logs in CSV are rows of one table."""
