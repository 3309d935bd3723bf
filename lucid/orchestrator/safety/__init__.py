"""Safety rules that every plan must pass before anything of it is applied, whatever policy made it."""
