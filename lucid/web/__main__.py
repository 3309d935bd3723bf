"""``python -m lucid.web`` is ``lucid-web``."""

from lucid.web.command import main

if __name__ == "__main__":
    main()
