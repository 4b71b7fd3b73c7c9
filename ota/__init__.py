"""edge-ota: pulls signed releases of models, tries them, switches to them, and rolls back on its own.

A program of its own, with its own user and its own rights. It shares no imports with `edge_serve`: they meet on disk in
the model repository, at the admin socket, and at `edge-serve check`. docs/adr/0021 has the design.

Rooms, upwards; each imports rooms below it only (`tests/test_layers.py`):

0. `errors`, `strict_json`, `clock`, `files`, `source`, `settings`: the error tree, JSON that is read strictly, time,
   every operation on disk, where a repository's bytes come from, and the table of settings.
1. `documents/`: what is signed: manifest, rollout, device. Bytes in, values out.
2. `layout`: where things lie in the state directory. `decide/`: pure decisions: which release, which variant, whether a
   probation is over.
3. `trust/`: TUF metadata and version floors. `fetch/`: the download of blobs. `store/`: releases, links, and the
   journal on disk. `server/`: what edge-serve is asked, and trials.
4. `agent/`: the straight line of an update, and the boot step. `publish/`: the signer's side.
5. `commands/`, then `cli` and `conformance`: the command line.
"""
