"""`python -m edge_serve`"""

import sys

from edge_serve.cli import main

sys.exit(main())
