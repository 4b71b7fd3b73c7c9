"""The frames that the front end and a worker exchange. Imports the standard library and NumPy only.

busy_poll      short waits are spent awake
calls          INFER and INFER_RESPONSE frames
execute        EXECUTE frames
frames         what travels between the front end and a worker
layout         how a model's tensors are numbered and laid out in frames
place          where a model's own code is
reply          REPLY and PARTIAL frames
thread_policy  whether a worker's thread, when it is woken, takes the core from whoever runs on it (ADR 18)
"""
