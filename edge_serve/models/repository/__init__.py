"""The model repositories on disk: what lies there, and whether it changed. Start reading in `repository`.

agents          repository agents
faults          bookkeeping of the repository entries that cannot be read
names           names and versions as they come in URLs
override        a load with its own configuration or files (`parameters` of a load request
reading         time limits for reading repositories
repository      what lies on disk
version_policy  which versions are served (ModelVersionPolicy of model_config.proto)
walk            the walk through a model directory, links followed, within limits
"""
