"""The frames that the front end writes and reads on data channels, and for models that call other models.

calls    reads INFER frames, writes INFER_RESPONSE frames
execute  writes EXECUTE frames
reply    reads REPLY and PARTIAL frames
"""
