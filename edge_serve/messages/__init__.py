"""The values that rooms hand each other: requests and responses, model signatures, metadata, statistics, index records.

Plain slotted dataclasses, no behaviour beyond a few derived values, and in `line` how any text is shown. Imports only
`errors` and `tensors`. Start reading in `infer`. Per-request values are not frozen: creating a frozen one costs four
times as much.

    failures       the models that failed to load, and why, in one line
    infer          one inference
    line           text of anybody's as one line for people
    log_fields     what a line of the log is about, as fields of its record
    metadata       metadata and repository index records
    peer           who is at the other end of a connection, as far as the connection knows
    ragged         ragged batches
    settings       the settings that clients may change while the server runs
    shared_memory  shared memory that clients register
    signature      what a loaded model accepts and returns, derived once from its completed configuration
    statistics     statistics of one model version
    status         what the status document is made of
    tensors        data types and tensors
    trace          what is recorded of one traced request
"""
