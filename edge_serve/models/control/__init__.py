"""Model control: load, unload, swap, and follow the repositories. Start reading in `registry`.

failures          dismisses failures of versions that are gone from the repository
instance_updater  carries out changes of `instance_group` alone
poller            follows the model repositories
polling           decides from two scans which models to load and unload
records           the registry's record of a model and of each version
registry          the table of all models: load, unload, readiness, lookup, index
required          required models (`--required-model`)
swap_queue        queues requests between the unloading of a version and the loading of its successor
version_swap      loads versions beside those that serve, swaps them in, and drains the old ones
"""
