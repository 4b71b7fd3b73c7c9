"""The command `pack`: installs, lists, and removes backend packs (docs/packs.md).

command   the options of the command, and its report
install   makes the directory of a pack from its files, an interpreter, and wheels that are pinned by hash
listing   what is in a backend directory, and what is wrong with it
probe     imports the backend of a pack, in its own interpreter
step      runs venv or pip, which end with the command
versions  the versions of a pack, and the link to the one that the server finds
"""
