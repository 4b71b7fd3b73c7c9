"""Generated pages of edge-ota: its settings, its manual page, and its completion for bash. `make docs` writes them."""
