"""The operator's commands on a device.

plan     computes the effect of an update without running it
actions  roll back, retry, pause, resume
repair   fetches damaged files of releases again
printer  prints progress to a terminal or a journal
"""
