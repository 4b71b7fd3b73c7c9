"""Starting a worker: its interpreter, its sandbox, its control group, and its end.

cgroups        a control group for each worker process, below the service's own, where systemd has given us that
environments   the interpreters of Python models
landlock       starts a program in a Landlock domain (landlock(7))
launcher       starts a worker under the interpreter of an environment
lifetime_pipe  what ends with a worker, and with the front end
sandbox        decides which files are closed to a worker, and starts its interpreter in a Landlock domain
unpack         unpacks the archive of a Python environment into a cache
"""
