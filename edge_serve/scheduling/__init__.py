"""Who runs next: policies that decide from values and act on nothing.

`core` has the words they share with the driver, `policy` picks the one that a model's configuration asks for, `dynamic`
and `direct` are the policies, `queue` and `instances` what they are made of. `keys` says which requests may share a
batch, `ordering` in which order their responses leave. Imports layers 0 and 1 only. Start reading in `core`.
"""
