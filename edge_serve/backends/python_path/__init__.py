"""The modules that Python models import. In a worker this directory is on `sys.path`, as Triton's backends/python is.

The modules of the same names at the root of the checkout give them to programs outside the server. `edge_serve` is the
package itself, for interpreters that do not find it.
"""
