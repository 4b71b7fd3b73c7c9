"""The model repositories on disk: their models, and whether they changed. Start reading in `repository`.

agents          repository agents
names           names and versions as they come in URLs
override        a load request with its own configuration or files (`parameters`)
reading         time limits for reading repositories, and the entries that cannot be read
repository      scans the repositories, finds models, and fingerprints them
version_policy  which versions are served (ModelVersionPolicy of model_config.proto)
walk            walks through a model directory, links followed, within limits
"""
