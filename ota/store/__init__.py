"""Releases on the disk of a device. Each change is durable before the next step relies on it.

- `places`: the directories of the state, and who may read them. `lock`: one edge-ota at a time.
- `releases`: puts a release together out of blobs. `links`: the links in the model repository that name releases.
- `journal`: which release serves, and how far the next one is; rebuilt from the disk where it is lost.
- `bad`: the releases that failed on this device. `history`: the last events.
- `collect`: garbage collection. `scrub`: finds files that changed on disk.
"""
