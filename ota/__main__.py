"""`python -m ota` is `edge-ota`."""

import sys

from ota.cli import main

sys.exit(main())
