"""Schedulers: policies that decide which requests run next. They take values and return values, and act on nothing.

Models without state use `direct` or `dynamic`, made of `queue`; models with state use the sequence
batcher. The driver (models/run/driver.py) calls them. Start reading in `core`.

    sequence/     the sequence batcher
    core          the interface of every scheduler, and its decisions
    direct        the default scheduler, and the base of the schedulers of stateless models
    dynamic       the dynamic batcher
    ensemble      the schedule of an ensemble: which steps a request needs, and which may run now
    keys          shape keys: which requests may share a batch
    ordering      `preserve_ordering`
    policy        picks the scheduler that a model's configuration asks for
    queue         the priority queue of a model, and its idle and busy instances
    rate_limiter  the rate limiter over all models
    seats         second seats: instances that take their next batch while one runs
    start_delay   schedulers that wait for a number of requests first, for Triton's tests
"""
