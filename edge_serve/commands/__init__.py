"""The command line outside the server: the list of commands with its help texts, and the parser of their options.

Start reading in `help`. `cli` calls this room; each command that is more than a few lines has a room of its own.
"""
