"""Requests to edge-serve. The two programs share no code.

admin_client  the client of edge-serve's admin socket: status document and reload
unit          runs work in a systemd unit behind a socket, or in a child process
trial         tests a release with `edge-serve check --json`
system_unit   asks the unit that installs systems
build         builds TensorRT plans with `edge-serve build`
doctor        the facts of this device: from the unit for builds, which sees the GPUs
"""
