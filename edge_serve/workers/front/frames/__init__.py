"""The frames that the front end writes and reads on data channels, and for models that call other models.

batch  writes EXECUTE frames, reads REPLY and PARTIAL frames
calls  reads INFER frames, writes INFER_RESPONSE frames
"""
