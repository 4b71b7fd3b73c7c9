"""Versions: one that serves, its life, and those that are draining. Start reading in `served`.

busy_versions       versions that have requests to answer, as text for a stop that waits for them
draining_versions   replaced versions that still have sequences
instance_group      the instances that `instance_group` asks for, and which of those that are there a new one
lifecycle           the life of a served version as a table
lineage             counters over all loads of a version
served              one version that is there
unloading_versions  the versions that were replaced or unloaded and still have something to answer, and the
"""
