"""The frames that a worker reads and writes on its data channels, and for calls to other models.

batch  reads EXECUTE frames, writes REPLY and PARTIAL frames
calls  writes INFER frames, reads INFER_RESPONSE frames
"""
