"""`python3 -m image.device COMMAND`."""

import sys

from image.device.cli import main

sys.exit(main())
