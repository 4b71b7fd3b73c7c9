"""The signer's side: makes bundles, signs metadata, and writes the static files that devices read. OTA.md 4.1 and 4.2.

`repository` reads the files and writes them in the order that no reader sees half-published; `change` signs; all else
makes changes. Start with `release.py`: it is the shortest way through. Heavy libraries (tuf, cryptography) are imported
here, so `ota/commands/publish.py` imports this room only when a subcommand runs.

- `roles`: who may do what, how many keys it takes, how long it lasts. `keys`: files with a passphrase, and tokens.
- `workspace`: the publisher's own directory: keys, and the change that waits for signatures of offline keys.
- `bundles/`: a directory with a manifest and blobs, made out of model directories.
- `release`, `fleets`: what is signed for devices. `rotate`: keys, thresholds, families. `ceremony`: offline keys;
  `words`: what a signature changes. `reports/`: what devices reported, and the gate of a rollout's next step.
- `verify`, `export`, `serve`: what devices will see; a copy for USB; a web server for tests.
"""
