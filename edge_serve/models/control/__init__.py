"""Model control: load, unload, swap, and follow the repositories. Start reading in `registry`.

instance_updater  carries out changes of `instance_group` alone
load_slots        how many versions may load at the same time
loads             loads models and the ensembles that need them, each under a lock of its own
poller            follows the model repositories: which models to load, which to unload, and when to scan again
records           the registry's record of a model and of each version, and what they say of the server's readiness
registry          the table of all models: load, unload, readiness, lookup, index
swap_queue        queues requests between the unloading of a version and the loading of its successor
version_swap      loads versions beside those that serve, swaps them in, and drains the old ones
"""
