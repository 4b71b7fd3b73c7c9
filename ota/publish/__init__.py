"""The publisher: makes bundles, signs metadata, and writes the static files that devices read. OTA.md 4.1 and 4.2.

This room imports tuf and cryptography, so `ota/commands/publish.py` imports it only when a subcommand runs. Start
reading in `release`: it is the shortest path.

    roles        the roles: number of keys, threshold, expiry, paths
    keys         keys of roles: files with a passphrase, and PKCS#11 tokens
    workspace    the publisher's directory: keys, and a change that waits for signatures
    repository   the static files, and the order in which they are written
    change       signs a change of metadata, and publishes it
    release      publishes a bundle, approves code, sets floors
    rollouts     edits the documents of fleets and devices
    rotate       the first keys, new keys, new families, and renewed signatures
    ceremony     signatures by keys of other machines
    memory       versions that a signer's key has signed or seen
    description  describes what a signature would change
    verify       checks a whole repository on disk
    export       copies the files of one fleet to a USB stick, and all files back from a web server
    serve        a web server for tests
    bundles/     makes a bundle from model directories
    commands/    the subcommands of `edge-ota publish`
    system/      publishes versions of the devices' system
    reports/     collects the reports of devices, and asks the gate of a rollout
"""
