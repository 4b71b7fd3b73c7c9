"""The GPUs and the memory of this machine. GPUs are found once at start, without a CUDA context in the front end (ADR
25). Start with `find`.

device       a GPU and the GPUs of a machine, as plain values
find         runs the probe and reads what it printed
watch        finds out why GPUs that were there are lost
probe        the short-lived process that asks the CUDA driver
host_memory  the memory of the machine, or of the control group
"""
