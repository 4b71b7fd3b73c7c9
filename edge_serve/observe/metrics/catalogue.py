"""Every exported metric: name, type, labels, where it is read, its help text, and when it is there.

Names and texts marked `nv_` are Triton's (triton-inference-server/core src/metrics.cc); the others are ours.
docs/metrics.md is made from this table by `make docs`.
"""

from __future__ import annotations

from edge_serve.observe.metrics.readers import (
    Reader,
    builds,
    cache,
    cache_count,
    counted,
    each,
    failures,
    first_response,
    gpu,
    http_requests,
    latency,
    micros,
    model_gpu_memory,
    one,
    ota,
    ota_each,
    queued,
    ready,
    refused,
    summary,
    throttled,
)
from edge_serve.records import frozen


@frozen
class MetricSpec:
    """One family.

    Attributes:
        labels: what its series carry; `model` stands for model, version and what `model_labels` adds.
        when: the condition under which it is there, for the docs; "" = always.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    read: Reader
    help: str
    when: str = ""


_MODEL = ("model",)
_GPU = ("gpu_uuid",)
_COUNT = "counter_latencies=true (default)"
_CACHE = "response cache on for the model"
_CACHES = "--cache-config=local,size=<bytes>"
_SUMMARY = "summary_latencies=true"
_SUMMARY_UNCACHED = "summary_latencies=true, response cache off"
_SUMMARY_CACHED = "summary_latencies=true, response cache on for the model"
_CPU = "--allow-cpu-metrics=true (default)"
_OTA = "edge-ota has written --ota-status-file"
_NVML = "a GPU is found (by the extra `[nvml]`, or on a Jetson) and --allow-gpu-metrics=true (default)"

# fmt: off
CATALOGUE: tuple[MetricSpec, ...] = (
    MetricSpec("nv_inference_request_success", "counter", _MODEL, counted(lambda s: s.success.count),
           "Number of successful inference requests, all batch sizes"),
    MetricSpec("nv_inference_request_failure", "counter", (*_MODEL, "reason"), failures,
           "Number of failed inference requests, all batch sizes"),
    MetricSpec("nv_inference_count", "counter", _MODEL, counted(lambda s: s.inference_count),
           "Number of inferences performed (does not include cached requests)"),
    MetricSpec("nv_inference_exec_count", "counter", _MODEL, counted(lambda s: s.execution_count),
           "Number of model executions performed (does not include cached requests)"),
    MetricSpec("nv_inference_request_duration_us", "counter", _MODEL, micros(lambda s: s.success),
           "Cumulative inference request duration in microseconds (includes cached requests)", _COUNT),
    MetricSpec("nv_inference_queue_duration_us", "counter", _MODEL, micros(lambda s: s.queue),
           "Cumulative inference queuing duration in microseconds (includes cached requests)", _COUNT),
    MetricSpec("nv_inference_compute_input_duration_us", "counter", _MODEL, micros(lambda s: s.compute_input),
           "Cumulative compute input duration in microseconds (does not include cached requests)", _COUNT),
    MetricSpec("nv_inference_compute_infer_duration_us", "counter", _MODEL, micros(lambda s: s.compute_infer),
           "Cumulative compute inference duration in microseconds (does not include cached requests)", _COUNT),
    MetricSpec("nv_inference_compute_output_duration_us", "counter", _MODEL, micros(lambda s: s.compute_output),
           "Cumulative inference compute output duration in microseconds (does not include cached requests)", _COUNT),
    MetricSpec("nv_inference_pending_request_count", "gauge", _MODEL, each(lambda m: m.stats.pending),
           "Instantaneous number of pending requests awaiting execution per-model."),
    MetricSpec("nv_model_load_duration_secs", "gauge", _MODEL, each(lambda m: m.series.loaded.load_seconds),
           "Model load time in seconds"),
    MetricSpec("nv_cache_num_hits_per_model", "counter", _MODEL, cache_count(lambda s: s.cache_hit),
           "Number of cache hits per model", _CACHE),
    MetricSpec("nv_cache_num_misses_per_model", "counter", _MODEL, cache_count(lambda s: s.cache_miss),
           "Number of cache misses per model", _CACHE),
    MetricSpec("nv_cache_hit_duration_per_model", "counter", _MODEL, micros(lambda s: s.cache_hit, cache=True),
           "Total cache hit duration per model, in microseconds", _CACHE),
    MetricSpec("nv_cache_miss_duration_per_model", "counter", _MODEL, micros(lambda s: s.cache_miss, cache=True),
           "Total cache miss (insert+lookup) duration per model, in microseconds", _CACHE),
    # gauges, as in Triton's local cache, although all but the first two only grow
    MetricSpec("nv_cache_util", "gauge", (), cache(lambda c: c.used / c.size),
           "Cache utilization [0.0 - 1.0]", _CACHES),
    MetricSpec("nv_cache_num_entries", "gauge", (), cache(len),
           "Number of responses stored in response cache", _CACHES),
    MetricSpec("nv_cache_num_hits", "gauge", (), cache(lambda c: c.hits),
           "Number of cache hits in response cache", _CACHES),
    MetricSpec("nv_cache_num_misses", "gauge", (), cache(lambda c: c.misses),
           "Number of cache misses in response cache", _CACHES),
    MetricSpec("nv_cache_num_lookups", "gauge", (), cache(lambda c: c.hits + c.misses),
           "Number of cache lookups in response cache", _CACHES),
    MetricSpec("nv_cache_num_evictions", "gauge", (), cache(lambda c: c.evictions),
           "Number of cache evictions in response cache", _CACHES),
    MetricSpec("nv_cache_lookup_duration", "gauge", (), cache(lambda c: c.lookup_ns // 1000),
           "Total cache lookup duration (hit and miss), in microseconds", _CACHES),
    MetricSpec("nv_cache_insertion_duration", "gauge", (), cache(lambda c: c.insertion_ns // 1000),
           "Total cache insertion duration, in microseconds", _CACHES),
    # 0 on a machine without a GPU, as in Triton
    MetricSpec("nv_pinned_memory_pool_total_bytes", "gauge", (), one(lambda s: s.pinned[0]),
           "Pinned memory pool total memory size, in bytes"),
    MetricSpec("nv_pinned_memory_pool_used_bytes", "gauge", (), one(lambda s: s.pinned[1]),
           "Pinned memory pool used memory size, in bytes"),
    MetricSpec("nv_inference_first_response_histogram_ms", "histogram", _MODEL, first_response,
           "Duration from request to first response in milliseconds", "histogram_latencies=true"),
    MetricSpec("nv_inference_request_summary_us", "summary", _MODEL,
           summary(1, lambda s: s.success, cache=False),
           "Summary of inference request duration in microseconds (includes cached requests)", _SUMMARY_UNCACHED),
    MetricSpec("nv_inference_queue_summary_us", "summary", _MODEL, summary(2, lambda s: s.queue, queued),
           "Summary of inference queuing duration in microseconds (includes cached requests)", _SUMMARY),
    MetricSpec("nv_inference_compute_input_summary_us", "summary", _MODEL, summary(3, lambda s: s.compute_input),
           "Cumulative compute input duration in microseconds (does not include cached requests)", _SUMMARY),
    MetricSpec("nv_inference_compute_infer_summary_us", "summary", _MODEL, summary(4, lambda s: s.compute_infer),
           "Cumulative compute inference duration in microseconds (does not include cached requests)", _SUMMARY),
    MetricSpec("nv_inference_compute_output_summary_us", "summary", _MODEL, summary(5, lambda s: s.compute_output),
           "Cumulative inference compute output duration in microseconds (does not include cached requests)", _SUMMARY),
    MetricSpec("nv_cache_hit_summary_per_model", "summary", _MODEL,
           summary(1, lambda s: s.cache_hit, lambda s: s.recent_hits, cache=True),
           "Summary of cache hit counts/durations per model, in microseconds.", _SUMMARY_CACHED),
    MetricSpec("nv_cache_miss_summary_per_model", "summary", _MODEL,
           summary(1, lambda s: s.cache_miss, lambda s: s.recent_misses, cache=True),
           "Summary of cache miss counts/durations per model, in microseconds.", _SUMMARY_CACHED),
    MetricSpec("nv_gpu_utilization", "gauge", _GPU, gpu(lambda g: g.utilization),
           "GPU utilization rate [0.0 - 1.0)", _NVML),
    MetricSpec("nv_gpu_memory_total_bytes", "gauge", _GPU, gpu(lambda g: g.memory_total),
           "GPU total memory, in bytes", _NVML),
    MetricSpec("nv_gpu_memory_used_bytes", "gauge", _GPU, gpu(lambda g: g.memory_used),
           "GPU used memory, in bytes", _NVML),
    MetricSpec("nv_gpu_power_usage", "gauge", _GPU, gpu(lambda g: g.power_usage),
           "GPU power usage in watts", _NVML),
    MetricSpec("nv_gpu_power_limit", "gauge", _GPU, gpu(lambda g: g.power_limit),
           "GPU power management limit in watts", _NVML),
    MetricSpec("nv_energy_consumption", "counter", _GPU, gpu(lambda g: g.energy),
           "GPU energy consumption in joules since the Triton Server started", _NVML),
    MetricSpec("nv_cpu_utilization", "gauge", (), one(lambda s: s.machine.cpu_utilization),
           "CPU utilization rate [0.0 - 1.0]", _CPU),
    MetricSpec("nv_cpu_memory_total_bytes", "gauge", (), one(lambda s: s.machine.memory_total),
           "CPU total memory (RAM), in bytes", _CPU),
    MetricSpec("nv_cpu_memory_used_bytes", "gauge", (), one(lambda s: s.machine.memory_used),
           "CPU used memory (RAM), in bytes", _CPU),
    # ours
    MetricSpec("edge_serve_model_ready", "gauge", ("model", "version"), ready,
           "1 if the version can answer, 0 if not, also because it failed to load; no series once it is unloaded"),
    MetricSpec("edge_serve_request_duration_seconds", "histogram", _MODEL, latency(lambda s: s.request_seconds),
           "Time from the arrival of a successful request to its response"),
    MetricSpec("edge_serve_queue_duration_seconds", "histogram", _MODEL, latency(lambda s: s.queue_seconds),
           "Time that a successful request waited before its execution"),
    MetricSpec("edge_serve_compute_duration_seconds", "histogram", _MODEL, latency(lambda s: s.compute_seconds),
           "Time that the execution of a successful request took, its inputs and outputs included"),
    MetricSpec("edge_serve_requests_in_flight", "gauge", _MODEL, each(lambda m: m.series.in_flight),
           "Requests accepted and not yet answered, those in the queue included"),
    MetricSpec("edge_serve_oldest_batch_seconds", "gauge", _MODEL, each(lambda m: m.series.oldest_batch_seconds),
           "Age of the oldest batch that the model is executing, 0 when it executes none"),
    MetricSpec("edge_serve_client_errors_total", "counter", _MODEL, each(lambda m: m.stats.client_errors),
           "Requests answered with an error of the client: HTTP status 4xx, or its gRPC code"),
    MetricSpec("edge_serve_model_errors_total", "counter", _MODEL, each(lambda m: m.stats.model_errors),
           "Responses in which the model itself put an error; Triton counts their requests as successes"),
    MetricSpec("edge_serve_worker_restarts_total", "counter", _MODEL, each(lambda m: m.series.worker_restarts),
           "Restarts of the model's worker processes after a crash or a hang"),
    MetricSpec("edge_serve_self_inference_failures_total", "counter", _MODEL,
           each(lambda m: m.series.loaded.failed_self_tests),
           "Requests of the server's own that the model failed, although it had answered them before"),
    MetricSpec("edge_serve_engine_build_seconds", "gauge", _MODEL,
           each(lambda m: m.series.loaded.engine_build_seconds or 0.0,
                lambda m: m.series.loaded.engine_build_seconds is not None),
           "Time that the load built the version's TensorRT engine, 0 if it was in the cache",
           "the server has built the version's engine, or found it in its cache"),
    MetricSpec("edge_serve_engine_build_running_seconds", "gauge", ("model", "version"), builds,
           "Time for which a load has been building the version's TensorRT engine", "while a load builds an engine"),
    MetricSpec("edge_serve_model_memory_bytes", "gauge", _MODEL, each(lambda m: m.series.memory_bytes),
           "Resident memory of the model's worker processes, its share where a worker is shared; pages that processes "
           "share count in each"),
    MetricSpec("edge_serve_tensor_memory_used_bytes", "gauge", (), one(lambda s: s.tensor_memory),
           "Memory that request bodies and tensors hold now, of --tensor-memory-bytes"),
    MetricSpec("edge_serve_http_connections", "gauge", (), one(lambda s: s.http.connections),
           "Open HTTP connections"),
    MetricSpec("edge_serve_http_requests_total", "counter", ("code",), http_requests,
           "HTTP requests answered, by status code"),
    MetricSpec("edge_serve_refused_total", "counter", ("reason",), refused,
           "Refused at the ports: connections, handshakes, requests and bodies beyond a limit, and access"),
    MetricSpec("edge_serve_gpu_temperature_celsius", "gauge", _GPU, gpu(lambda g: g.temperature),
           "GPU temperature in degrees Celsius", _NVML),
    MetricSpec("edge_serve_gpu_throttled", "gauge", (*_GPU, "reason"), throttled,
           "1 while the clocks of the GPU are lowered for this reason, else 0", _NVML),
    MetricSpec("edge_serve_gpu_lost", "gauge", _GPU, gpu(lambda g: int(bool(g.problem))),
           "1 if the driver does not answer for the GPU any more, else 0", _NVML),
    MetricSpec("edge_serve_model_gpu_memory_bytes", "gauge", (*_MODEL, *_GPU), model_gpu_memory,
           "Memory of a GPU that the load of the version took; no series where other loads ran meanwhile", _NVML),
    # of edge-ota, out of its status file
    MetricSpec("edge_ota_status_readable", "gauge", (),
           one(lambda s: int(not s.updates.problem) if s.updates else None),
           "1 if the status file of edge-ota can be read, else 0", _OTA),
    MetricSpec("edge_ota_status_age_seconds", "gauge", (), ota(lambda u: u.age_seconds),
           "Time since edge-ota wrote its status file; it grows when the agent does not run", _OTA),
    MetricSpec("edge_ota_last_check_timestamp", "gauge", (), ota(lambda u: u.last_check or None),
           "When edge-ota last asked the repository, in seconds since the epoch", _OTA),
    MetricSpec("edge_ota_last_success_timestamp", "gauge", (), ota(lambda u: u.last_success or None),
           "When a run of edge-ota last ended without an error, in seconds since the epoch", _OTA),
    MetricSpec("edge_ota_metadata_expires_seconds", "gauge", ("role",),
           ota_each(lambda u: [({"role": role}, when) for role, when in sorted(u.expires.items())]),
           "When the metadata of a role expires, in seconds since the epoch", _OTA),
    MetricSpec("edge_ota_clock_unset", "gauge", (), ota(lambda u: int(u.clock_unset)),
           "1 if the clock of the device is not set, so that a remembered time is used", _OTA),
    MetricSpec("edge_ota_paused", "gauge", (), ota(lambda u: int(bool(u.paused))),
           "1 if an operator has paused updates", _OTA),
    MetricSpec("edge_ota_state", "gauge", ("model", "state"),
           ota_each(lambda u: [({"model": b.name, "state": b.state}, 1) for b in u.bundles if b.state]),
           "1 for the state of a model's release: GOOD, or how far the next release is", _OTA),
    MetricSpec("edge_ota_release", "gauge", ("model", "release"),
           ota_each(lambda u: [({"model": b.name, "release": str(b.release)}, 1) for b in u.bundles if b.release]),
           "1 for the release that serves", _OTA),
    MetricSpec("edge_ota_release_failed", "gauge", ("model", "release"),
           ota_each(lambda u: [({"model": b.name, "release": str(one)}, 1) for b in u.bundles for one in b.failed]),
           "1 for each release that failed on this device for good", _OTA),
    MetricSpec("edge_ota_bytes_total", "counter", (), ota(lambda u: u.bytes_total),
           "Bytes that edge-ota has downloaded", _OTA),
    MetricSpec("edge_ota_failures_total", "counter", ("step", "reason"),
           ota_each(lambda u: [({"step": key.partition("/")[0], "reason": key.partition("/")[2]}, count)
                               for key, count in sorted(u.failures.items())]),
           "Steps of updates that failed, by step and reason", _OTA),
    MetricSpec("edge_ota_rollbacks_total", "counter", (), ota(lambda u: u.rollbacks),
           "Releases that edge-ota has rolled back", _OTA),
    MetricSpec("edge_ota_bad_releases", "gauge", (), ota(lambda u: u.bad_releases),
           "Releases that are remembered as bad on this device", _OTA),
    MetricSpec("edge_ota_engine_build_seconds", "gauge", (), ota(lambda u: u.build_seconds or None),
           "Time that the last build of an engine took", _OTA),
    MetricSpec("edge_ota_disk_free_bytes", "gauge", (), ota(lambda u: u.disk_free_bytes),
           "Free bytes for releases, as edge-ota saw them", _OTA),
)
# fmt: on
