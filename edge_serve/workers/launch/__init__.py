"""Starts a worker: interpreter, sandbox, control group, and the pipe that ends it with the front end.

cgroups        a control group for each worker process, below the service's own, where systemd delegates it
environments   the interpreters of Python models
landlock       starts a program in a Landlock domain (landlock(7))
launcher       starts a worker under the interpreter of an environment
lifetime_pipe  a pipe per worker, whose end makes the kernel kill the worker and its children
sandbox        decides which files are closed to a worker, and starts its interpreter in a Landlock domain
unpack         unpacks the archive of a Python environment into a cache
"""
