"""Access control: roles, the files that give them, and the decision. No sockets here, and no requests.

Start at `policy.py`. `tokens.py` and `certificates.py` read the files (docs/security.md says what is in them). The
doors ask through `transport/door/access.py`, which knows which operation needs which role.

    certificates  the file of certificates' roles
    policy        the decision
    roles         what a client may do
    tokens        the file of bearer tokens
"""
