"""What edge-ota asks of edge-serve; the two share no code.

- `administration`: the socket for administration: the status document, and the reload of models.
- `unit`: a request to a unit that a socket starts, or to a child process; and the side that runs in the unit.
- `trial`: `edge-serve check --json` for a release, before any client sees it.
- `build`: `edge-serve build` for the plans of a variant.
"""
