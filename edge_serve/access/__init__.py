"""Access control: roles, the files that give them, and the decision. No sockets here, and no requests.

    credentials  the files that give roles to bearer tokens and to client certificates
    policy       decides whether a client has the role that an operation needs
    roles        the roles, each of which includes those before it

The doors ask through `transport/door/access.py`, which knows which operation needs which role. docs/security.md has
the syntax of the files. Start reading in `policy`.
"""
