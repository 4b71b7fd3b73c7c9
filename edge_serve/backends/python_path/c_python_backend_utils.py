"""The classes of Triton's stub under the name that its own module has."""

from edge_serve.backends.python.api.calls import ResponseIterator as ResponseIterator
from edge_serve.backends.python.api.errors import TritonError as TritonError
from edge_serve.backends.python.api.errors import TritonModelException as TritonModelException
from edge_serve.backends.python.api.logger import Logger as Logger
from edge_serve.backends.python.api.metrics import Metric as Metric
from edge_serve.backends.python.api.metrics import MetricFamily as MetricFamily
from edge_serve.backends.python.api.metrics import MetricKind as MetricKind
from edge_serve.backends.python.api.repository import is_model_ready as is_model_ready
from edge_serve.backends.python.api.repository import load_model as load_model
from edge_serve.backends.python.api.repository import unload_model as unload_model
from edge_serve.backends.python.api.request import InferenceRequest as InferenceRequest
from edge_serve.backends.python.api.request import InferenceTrace as InferenceTrace
from edge_serve.backends.python.api.request import MemoryType as MemoryType
from edge_serve.backends.python.api.request import PreferredMemory as PreferredMemory
from edge_serve.backends.python.api.response import InferenceResponse as InferenceResponse
from edge_serve.backends.python.api.sender import InferenceResponseSender as InferenceResponseSender
from edge_serve.backends.python.api.tensor import Tensor as Tensor

COUNTER, GAUGE, HISTOGRAM = MetricKind
TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = MemoryType
