"""Formats of the frames that the front end and a worker exchange. Runs in both processes.

Imports the standard library and NumPy only, and neither `front/` nor `child/`.

    calls         structs and tensors of the INFER and INFER_RESPONSE frames
    frames        frame kinds, headers, structs, and control frames
    layout        numbers of a model's tensors, and their descriptions in frames
    place         the innermost call in a model's own code, for messages
    polling_wait  decides whether the next wait is polled through (ADR 17)
"""
