"""Sums up a sequence. The server keeps the sum between its requests, so there is no book-keeping here."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT = the sum of INPUT so far, plus the sequence's id as a number in its last answer."""

    def execute(self, requests):
        """One response per request, in order."""
        responses = []
        for request in requests:
            try:
                responses.append(self._answer(request))
            except (ValueError, OverflowError) as error:  # its id is no number: those beside it go on
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"sequence id: {error}")))
        return responses

    def _answer(self, request):
        def value(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        total = value("SUM_SO_FAR") + value("INPUT")
        answer = total
        if value("END").any():
            answer = total + int(value("CORRID").item())
        outputs = [pb_utils.Tensor("OUTPUT", answer.astype("int32")), pb_utils.Tensor("SUM", total)]
        return pb_utils.InferenceResponse(outputs)
