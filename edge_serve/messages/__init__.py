"""The values that rooms hand each other: requests and responses, model signatures, metadata, statistics, index records.

Plain slotted dataclasses, no behaviour beyond a few derived values, and in `line` how any text is shown. Imports only
`errors` and `tensors`. Start reading in `infer`. Per-request values are not frozen: creating a frozen one costs four
times as much.
"""
