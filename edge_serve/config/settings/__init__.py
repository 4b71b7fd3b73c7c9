"""The server's settings: one table, read from argv and environment. Start reading in `server`.

addresses      addresses on which the server listens, and whether two of them overlap
kinds          parsers of single values: text in, value out
programs       the names under which the server starts, and the defaults that each name changes
server         the table: the annotated fields of `ServerConfig`
server_values  structured values, and their syntax on the command line
table          reads argv and environment by a table, and prints the table as `--help`
"""
