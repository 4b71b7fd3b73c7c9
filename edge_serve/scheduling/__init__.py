"""Schedulers: policies that decide which requests run next. They take values and return values, and act on nothing.

Models without state use `direct` or `dynamic`, made of `queue` and `instances`; models with state use the sequence
batcher. The driver (models/run/driver.py) calls them. Imports layers 0 and 1 only. Start reading in `core`.

    ensemble/     the schedule of an ensemble
    sequence/     the sequence batcher
    core          the interface of every scheduler, and its decisions
    direct        the default scheduler
    dynamic       the dynamic batcher
    instances     the idle and busy instances of a model
    keys          shape keys: which requests may share a batch
    ordering      `preserve_ordering`
    policy        picks the scheduler that a model's configuration asks for
    queue         the priority queue of a model
    queued        the common part of the schedulers of stateless models
    rate_limiter  the rate limiter over all models
"""
