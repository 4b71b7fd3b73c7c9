"""Control of what is loaded: load, unload, swap, and follow the repositories. Start reading in `registry`.

failures          failed versions that are gone from the repository
instance_updater  carries out changes of `instance_group` alone
poller            follows the model repositories
polling           what a look at the model repositories means
records           what the registry remembers of a model
registry          what is loaded
required          required models (`--required-model`)
swap_queue        where the requests of a model wait while its old version has gone and the new one is not there
version_swap      how versions come and go
"""
