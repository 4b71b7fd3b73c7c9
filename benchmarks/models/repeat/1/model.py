"""Sends COUNT responses of SIZE numbers each, as fast as it can; stops when nobody listens any more."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]
            size = pb_utils.get_input_tensor_by_name(request, "SIZE").as_numpy()[0]
            sender = request.get_response_sender()
            for i in range(count):
                if i % 64 == 0 and sender.is_cancelled():
                    break
                value = np.full(size, i, np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
