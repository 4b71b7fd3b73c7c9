"""The server's settings: one table, read from argv and environment. Start reading in `server`.

doors          settings that make the doors safe
kinds          how the value of a setting is written
programs       names under which the server starts, and the defaults that each name changes
server         the server's settings
server_docs    writes docs/settings.md from the table in `server`
server_values  the structured values of the server's settings, and how each is written on the command line
table          reading settings from argv and environment by a table, and printing the table as `--help`
"""
