"""Who runs next: policies that decide from values and act on nothing.

`core` has the words they share with the driver, `policy` picks the one that a model's configuration asks for. `direct`
and `dynamic` are for models without state, made of `queue` and `instances`; `sequence_direct` and `sequence_oldest` are
for the others, made of `sequences`, `sequence` and `seats`. `ensemble` plans the steps of an ensemble, `rate_limiter`
stands above all models. `keys` says which requests may share a batch, `ordering` in which order their responses leave.
Imports layers 0 and 1 only. Start reading in `core`.

    ensemble/     The schedule of an ensemble
    sequence/     The sequence batcher
    core          the words of every scheduler
    direct        the default scheduler
    dynamic       the dynamic batcher
    instances     which instances of a model are idle
    keys          which requests may share a batch
    ordering      `preserve_ordering`
    policy        from a model's configuration to the scheduler that it asks for
    queue         the queue in front of a model
    queued        what the schedulers of stateless models have in common
    rate_limiter  the rate limiter
"""
