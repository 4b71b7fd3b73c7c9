"""edge-ota: pulls signed releases of models, tests them, switches to them, and rolls back by itself.

A separate program with its own user and permissions. It shares no imports with `edge_serve`. The two meet on disk in
the model repository, at the admin socket, and at `edge-serve check`. docs/adr/0021 has the design.

The number is the layer. A room imports rooms of lower layers only (`tests/test_layers.py`). Start reading in
`agent/update`.

    errors       0: the tree of errors, with reason words and exit statuses
    strict_json  0: reads untrusted JSON strictly, and writes canonical JSON
    clock        0: time as an argument
    files        0: every operation on disk
    source       0: the interface of a repository: a web server or a directory
    settings     0: the table of the agent's settings
    documents/   1: the signed documents: manifest, rollout, device, report
    layout       2: the paths in the state directory
    decide/      2: pure decisions: which release, which variant, whether a probation is over
    trust/       3: TUF metadata and version floors
    fetch/       3: downloads blobs and metadata
    store/       3: releases, links, and the journal on disk
    server/      3: requests to edge-serve, trials, and builds
    agent/       4: the steps of an update, and the boot step
    publish/     4: the publisher: keys, bundles, releases, rollouts
    commands/    5: the commands of a device
    cli          6: the command line
    conformance  6: the client that TUF's conformance suite runs
    __main__     7: `python -m ota`
"""
