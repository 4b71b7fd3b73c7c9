"""The directory on `sys.path` of a worker with Python models, as Triton's backends/python is: what models import.

Nothing in edge_serve imports from here.
"""
