"""Applies `edge-serve.toml`, the one file that configures a device. docs/image_settings.md explains it.

Start with `flow`, which has the order of all steps.

    flow           reads, checks, stores, applies, and removes secrets
    read           reads and parses the file
    lines          finds the line of each key
    schema         the table of all keys; checks names and types
    checks         checks values, and makes the configuration
    texts          checks of single values
    programs       checks by other programs: certificates, OTA documents, settings of the server
    configuration  the configuration as plain values
    mistakes       mistakes with their lines
    store          the configuration on the data partition
    apply          derives the files of the system
    secrets        removes secrets from the boot partition
"""
