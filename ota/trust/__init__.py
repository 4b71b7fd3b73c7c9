"""Verifies the metadata and documents of a repository: TUF, version floors, and the clock floor.

Blobs are verified in `fetch/`, by the hashes of a verified manifest. Start reading in `client`.

    client       TUF client; the only file that imports tuf.ngclient
    tuf_errors   translates errors of tuf into errors of edge-ota
    verified     reads keys, delegations, and the issue time from verified metadata
    floors       version floors: the lowest versions that this device accepts
    clock_floor  the time that expiry is judged by when the clock may be wrong
    expiry       the TUF client with the clock floor, as the agent uses it
    roles        which role must list a target path
    roots        the factory root, and times as TUF writes them
"""
