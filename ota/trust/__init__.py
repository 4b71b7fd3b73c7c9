"""Trust: which bytes of a repository this device believes. TUF metadata, version floors, and the clock floor.

Start with `client`: `Trust` refreshes the metadata and verifies documents. Blobs are not its job; `fetch/` checks them
by the hashes of a verified manifest.

- `client`: the only file that imports tuf.ngclient; `foreign`: its errors, turned into ours.
- `verified`: what verified metadata says of keys, delegations, and its own age.
- `floors`: the lowest versions that this device accepts, in two places on disk.
- `clock_floor`: the time that expiry is judged by, on devices whose clock may be wrong.
- `dated`: metadata that is judged by that clock, as the agent uses it.
- `roles`: which role must list a target path.
- `roots`: the factory root, and times as TUF writes them.
"""
