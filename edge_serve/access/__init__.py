"""Access control: roles, the files that give them, and the decision. It has no sockets and no requests.

    credentials  the files that give roles to bearer tokens and to client certificates
    policy       decides whether a client has the role that an operation needs
    roles        the roles, each of which includes those before it

The doors use it through `transport/door/access.py`; their tables of operations say which role each needs.
docs/security.md has the syntax of the files. Start reading in `policy`.
"""
