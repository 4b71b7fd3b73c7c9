"""Values that rooms hand each other: requests and responses, model signatures, metadata, statistics, index records.

    infer          an inference request and its response
    line           any text as one line that people can read; the line about models that failed to load
    log_fields     the subject of a log line (model, version, request) as fields of its record
    metadata       metadata and entries of the repository index
    peer           the peer of a connection
    ragged         `batch_input` and `batch_output`: joins requests of unequal shapes
    settings       the settings that clients may change while the server runs
    shared_memory  shared memory that clients register
    signature      the signature of a loaded model
    statistics     the statistics of one model version
    status         the facts in the status document
    tensors        data types and tensors: names, sizes, arrays, BYTES, BF16
    trace          the record of one traced request

Slotted dataclasses without behaviour beyond a few derived values. Start reading in `infer`.
Per-request values are not frozen: creating a frozen one costs four times as much.
"""
