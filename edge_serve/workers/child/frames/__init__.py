"""The frames that a worker reads and writes on its data channels, and for calls to other models.

calls    writes INFER frames, reads INFER_RESPONSE frames
execute  reads EXECUTE frames
reply    writes REPLY and PARTIAL frames
"""
