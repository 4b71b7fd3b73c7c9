"""Starts a worker: interpreter, sandbox, control group, and the pipe that ends it with the front end.

cgroups        a control group for each worker process, below the service's own, where systemd delegates it
environments   finds the environments of Python models and packs, and checks their interpreters
interpreter    command lines of our Python code under an interpreter
landlock       starts a program in a Landlock domain (landlock(7))
launcher       starts a worker under the interpreter of an environment
lifetime_pipe  a pipe per worker, whose end makes the kernel kill the worker and its children
sandbox        decides which files are closed to a worker, and starts its interpreter in a Landlock domain
spawn          starts the process of a worker
unpack         unpacks the archive of a Python environment into a cache
"""
