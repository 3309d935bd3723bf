"""How many small mistakes in the deciding half the tests notice: ``make mutants``."""
