"""The `__module__` of the classes of `triton_python_backend_utils`; pickle imports them from here.

In the stub of a real Triton a built-in module of this name comes first.
"""

from edge_serve.backends.python_path.c_python_backend_utils import *  # noqa: F403
