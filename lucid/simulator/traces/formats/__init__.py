"""One module for each format of traces: ``ABOUT`` says what it is, ``read`` reads it."""
