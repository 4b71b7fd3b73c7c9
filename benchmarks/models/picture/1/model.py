"""A picture in, 1,000 numbers out, and no work in between: what a classifier's traffic costs the server."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 = the first 1,000 values of INPUT0."""

    def execute(self, requests):
        """One response per request, in order."""
        responses = []
        for request in requests:
            picture = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            rows = picture.reshape(len(picture), -1)[:, :1000]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", rows)]))
        return responses
