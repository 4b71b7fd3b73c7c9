"""The sum of what came so far in a sequence: the smallest stateful work there is, so what is measured is the server."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUT = the sum of IN since the sequence's START."""

    def initialize(self, args):
        """Sums by correlation id."""
        self.sums = {}

    def execute(self, requests):
        """One response per request, in order; null requests are answered too."""
        responses = []
        for request in requests:
            name, flags = request.correlation_id(), request.flags()
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            total = value if flags & 1 or name not in self.sums else self.sums[name] + value
            if flags & 2:
                self.sums.pop(name, None)
            elif name:
                self.sums[name] = total
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total.astype(np.int32))]))
        return responses
