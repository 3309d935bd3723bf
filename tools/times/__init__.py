"""How long every test and fixture takes, in CPU time and on the clock: ``make test-times``."""
