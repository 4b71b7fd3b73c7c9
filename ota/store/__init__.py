"""Releases on the disk of a device. Each change is durable before the next step relies on it.

directories  creates the directories of the state, with their permissions
lock         the lock file: one edge-ota at a time
releases     assembles releases from blobs
system_stage  the files of a system that wait for their installation
links        the links in the model repository that name releases
journal      which release of a bundle serves, and the stage of the next one
bad          the bad list: releases that failed on this device
history      the last events
pause        the file that pauses updates
garbage      garbage collection of releases and blobs
scrub        finds files that changed on disk
"""
