"""Models: finds them on disk, loads them, runs their requests, swaps them, and unloads them.

A request enters through a `Served` (versions/served.py). Its runner executes the request: a driver over workers
(run/driver.py), or an ensemble over other models (ensemble/ensemble.py). `Registry` (control/registry.py) decides which
models are loaded. Start reading in `Registry`.

    control/     which models are loaded: load, unload, swap, and follow the repositories
    ensemble/    ensembles: requests that pass through several models
    extras/      response cache, rate limiter, and models that call models
    load/        one load: from a model directory to a version that serves
    repository/  the model repositories on disk
    run/         runs the requests of a version: drivers and their parts
    versions/    loaded versions, and versions that drain
"""
