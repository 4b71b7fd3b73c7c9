"""Generated pages of edge-ota. `make docs` writes them.

settings    docs/ota_settings.md
man_page    edge-ota(1)
completion  completion for bash
words       the command line as a tree
"""
