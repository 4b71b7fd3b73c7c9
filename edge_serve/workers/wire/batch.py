"""Structs and flags of the EXECUTE, REPLY and PARTIAL frames."""

from __future__ import annotations

import struct

# mask of the listed outputs (0 = all), correlation id, priority, timeout us, deadline ns; flags, id bytes, extra bytes,
# block bytes, where its data starts, seat of its sequence
REQUEST = struct.Struct("<QQQQQIIIIIi")

# output slot: offset, capacity; bytes of the part before the data; us to poll for the next frame before sleeping
EXECUTE_HEAD = struct.Struct("<QQII")

REPLY_HEAD = struct.Struct("<qqqqII")  # four time marks, token of the output slot, bytes of the part before the data

PARTIAL_HEAD = struct.Struct("<IIII")  # the request's index, FINAL | NULL, token, bytes of the part before the data

# 0, or 1 + Triton's error code | ANSWERED, or RESCHEDULED; extra bytes, block bytes, its data's start
ANSWER = struct.Struct("<IIII")


#: of a PARTIAL: the last one of its request; it is no response, only tells that none follows
FINAL, NULL = 1, 2

#: of an ANSWER: the error is the model's own answer (`Reply.answered`)
ANSWERED = 0x100

#: in place of an ANSWER's error: no answer yet (`Reply.rescheduled`)
RESCHEDULED = 0x200
