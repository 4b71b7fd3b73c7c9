"""The classes of Triton's stub under the name that its own module has."""

from edge_serve.backends.python_calls import ResponseIterator as ResponseIterator
from edge_serve.backends.python_errors import TritonError as TritonError
from edge_serve.backends.python_errors import TritonModelException as TritonModelException
from edge_serve.backends.python_logger import Logger as Logger
from edge_serve.backends.python_metrics import Metric as Metric
from edge_serve.backends.python_metrics import MetricFamily as MetricFamily
from edge_serve.backends.python_metrics import MetricKind as MetricKind
from edge_serve.backends.python_repository import is_model_ready as is_model_ready
from edge_serve.backends.python_repository import load_model as load_model
from edge_serve.backends.python_repository import unload_model as unload_model
from edge_serve.backends.python_request import InferenceRequest as InferenceRequest
from edge_serve.backends.python_request import InferenceTrace as InferenceTrace
from edge_serve.backends.python_request import MemoryType as MemoryType
from edge_serve.backends.python_request import PreferredMemory as PreferredMemory
from edge_serve.backends.python_response import InferenceResponse as InferenceResponse
from edge_serve.backends.python_response import InferenceResponseSender as InferenceResponseSender
from edge_serve.backends.python_tensor import Tensor as Tensor

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
