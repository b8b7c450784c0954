"""``python -m vkq`` is the command ``vkq``."""

import sys

from vkq.cli import main

if __name__ == "__main__":
    sys.exit(main())
