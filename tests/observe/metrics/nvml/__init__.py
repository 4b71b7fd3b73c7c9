"""NVIDIA's genuine `pynvml` over a stand-in libnvidia-ml.

genuine   installs two releases of the package into the cache of the tests, and builds the stand-in
read      prints the readings of this process's libnvidia-ml
nvml.c    the stand-in: a board of a driver before R510, or of a present one
"""
