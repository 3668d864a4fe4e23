"""``python -m torchdp``."""

import sys

from torchdp.cli import main

if __name__ == "__main__":  # a file may name this module, as a class's
    sys.exit(main())
