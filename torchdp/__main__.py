"""``python -m torchdp``."""

import sys

from torchdp.cli import main

sys.exit(main())
