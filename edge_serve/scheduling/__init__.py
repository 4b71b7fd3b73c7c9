"""Who runs next: policies that decide from values and act on nothing.

`core` has the words they share with the driver, `policy` picks the one that a model's configuration asks for. `direct`
and `dynamic` are for models without state, made of `queue` and `instances`; `sequence_direct` and `sequence_oldest` are
for the others, made of `sequences`, `sequence` and `seats`. `ensemble` plans the steps of an ensemble, `rate_limiter`
stands above all models. `keys` says which requests may share a batch, `ordering` in which order their responses leave.
Imports layers 0 and 1 only. Start reading in `core`.
"""
