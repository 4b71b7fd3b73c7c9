"""Versions: one that serves, its lifecycle, and those that drain. Start reading in `served`.

health              the health of a version: its own answer, and the self-tests
instance_group      the instances that `instance_group` asks for, compared with those that exist
lifecycle           the states of a version, as a table
lineage             counters over all loads of a version
served              a loaded version: configuration, signature, runner, and memory; the table of versions for requests
unloading_versions  versions that still drain, the counters of those that are closed, and the versions that are busy
"""
