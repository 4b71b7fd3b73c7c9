"""The page against prometheus_client's parser, promtool and a real Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import math
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edge_serve.models.extras.response_cache import ResponseCache
from edge_serve.models.run.statistics import RECENT_REQUESTS, new_statistics, record_cache_hit, record_success
from edge_serve.observe.metrics import page as page_module
from edge_serve.observe.metrics.gpu import GpuReading, no_gpus
from edge_serve.observe.metrics.nvml import THROTTLE_REASONS
from edge_serve.observe.metrics.options import MetricsOptions, parse_options
from edge_serve.observe.metrics.page import Page
from edge_serve.observe.metrics.source import CustomFamily, CustomSample, ModelSeries, Readiness
from tests.observe.metrics.conftest import MS, FakeClock, FakeSource, FakeVersion, rendered
from tests.prometheus import eventually, prometheus

ALL = MetricsOptions(summaries=True, histograms=True)


class OneGpu:
    reads = 0

    def __call__(self) -> list[GpuReading]:
        self.reads += 1
        return [
            GpuReading("GPU-1", utilization=0.5, memory_total=1000, energy=12.5, throttling=("sw_thermal",)),
            GpuReading("GPU-2", problem="the GPU is lost"),
        ]


def parsed(page: bytes) -> dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]]:
    """family -> {(sample name, labels): value}, as prometheus_client reads it: it adds `_total` to each counter."""
    return {
        family.name: {(s.name.removesuffix("_total"), tuple(sorted(s.labels.items()))): s.value for s in family.samples}
        for family in text_string_to_metric_families(page.decode())
    }


def test_prometheus_client_reads_every_value_back(source: FakeSource, clock: FakeClock) -> None:
    families = parsed(rendered(Page(source, ALL, OneGpu(), clock)))
    plain = (("model", "plain"), ("version", "1"))
    odd = (("_team", "blue"), ("gpu_uuid", "GPU-1"), ("model", 'odd"\\\nname'), ("version", "3"))
    assert families["nv_inference_request_success"] == {
        ("nv_inference_request_success", labels): 2 for labels in (plain, odd)
    }
    assert families["nv_inference_count"]["nv_inference_count", odd] == 4
    assert families["nv_inference_exec_count"]["nv_inference_exec_count", plain] == 1
    assert families["nv_inference_request_duration_us"]["nv_inference_request_duration_us", plain] == 33_000
    assert families["nv_inference_queue_duration_us"]["nv_inference_queue_duration_us", plain] == 29_000
    assert families["nv_model_load_duration_secs"]["nv_model_load_duration_secs", plain] == 0.25
    assert families["nv_inference_pending_request_count"]["nv_inference_pending_request_count", plain] == 2
    reasons = {dict(labels)["reason"]: v for (_, labels), v in families["nv_inference_request_failure"].items()}
    assert reasons == {"REJECTED": 1, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
    assert list(families["nv_cache_num_hits_per_model"]) == [("nv_cache_num_hits_per_model", odd)]
    assert families["edge_serve_http_requests"] == {
        ("edge_serve_http_requests", (("code", "200"),)): 7,
        ("edge_serve_http_requests", (("code", "404"),)): 1,
    }
    assert families["nv_gpu_utilization"] == {("nv_gpu_utilization", (("gpu_uuid", "GPU-1"),)): 0.5}
    assert "nv_gpu_power_usage" not in families
    reasons = {dict(labels)["reason"]: value for (_, labels), value in families["edge_serve_gpu_throttled"].items()}
    assert reasons == {**dict.fromkeys(THROTTLE_REASONS, 0), "sw_thermal": 1}
    assert list(families["edge_serve_gpu_lost"].values()) == [0, 1]
    taken = families["edge_serve_model_gpu_memory_bytes"]
    assert {dict(labels)["gpu_uuid"]: value for (_, labels), value in taken.items()} == {"GPU-1": 700}
    assert "nv_cpu_memory_total_bytes" in families


def test_a_version_that_cannot_answer_has_a_0(source: FakeSource, clock: FakeClock) -> None:
    source.ready = [Readiness("plain", "1", True), Readiness("plain", "2", False), Readiness("bare", "", False, "/r")]

    families = parsed(rendered(Page(source, ALL, no_gpus, clock)))

    assert {labels: value for (_, labels), value in families["edge_serve_model_ready"].items()} == {
        (("model", "plain"), ("version", "1")): 1,
        (("model", "plain"), ("version", "2")): 0,
        (("model", "bare"), ("namespace", "/r"), ("version", "")): 0,
    }


def test_counters_keep_tritons_names(source: FakeSource, clock: FakeClock) -> None:
    text = rendered(Page(source, ALL, no_gpus, clock)).decode()
    assert '\nnv_inference_count{model="plain",version="1"} 4\n' in text
    assert '\nedge_serve_http_requests_total{code="404"} 1\n' in text


def test_histograms_are_cumulative_and_in_seconds(source: FakeSource, clock: FakeClock) -> None:
    family = parsed(rendered(Page(source, ALL, no_gpus, clock)))["edge_serve_request_duration_seconds"]
    values = {name[len("edge_serve_request_duration_seconds") :]: v for (name, _), v in family.items()}
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in family.items()
        if name.endswith("_bucket") and dict(labels)["model"] == "plain"
    }
    assert (buckets["0.0025"], buckets["0.005"], buckets["0.05"], buckets["+Inf"]) == (0, 1, 2, 2)
    assert list(buckets)[-1] == "+Inf"
    assert values["_sum"] == pytest.approx(0.033)
    assert values["_count"] == 2


def test_summaries_forget_after_the_window_and_skip_cached_request_time(source: FakeSource, clock: FakeClock) -> None:
    page = Page(source, ALL, no_gpus, clock)
    summary = parsed(rendered(page))["nv_inference_request_summary_us"]
    assert {dict(labels)["model"] for _, labels in summary} == {"plain"}
    by_quantile = {dict(labels).get("quantile"): v for (name, labels), v in summary.items() if "_us_" not in name}
    assert (by_quantile["0.5"], by_quantile["0.999"]) == (3_000, 30_000)
    clock.ns += 61_000 * MS
    summary = parsed(rendered(page))["nv_inference_request_summary_us"]
    assert all(math.isnan(v) for (name, _), v in summary.items() if "_us_" not in name)
    assert [v for (name, _), v in summary.items() if name.endswith("_count")] == [2]


def test_each_summary_is_of_its_own_part_of_the_request(clock: FakeClock) -> None:
    stats = new_statistics(summaries=True, histograms=False)
    record_success(stats, 1, (0,), (1 * MS, 3 * MS, 7 * MS, 15 * MS), 31 * MS)
    source = FakeSource([ModelSeries("m", "1", {}, stats, FakeVersion())])
    families = parsed(rendered(Page(source, ALL, no_gpus, clock)))
    medians = {
        part: value
        for part in ("request", "queue", "compute_input", "compute_infer", "compute_output")
        for (_, labels), value in families[f"nv_inference_{part}_summary_us"].items()
        if ("quantile", "0.5") in labels
    }
    assert medians == {
        "request": 31_000, "queue": 1_000, "compute_input": 2_000, "compute_infer": 4_000, "compute_output": 8_000,
    }  # fmt: skip


def test_quantiles_of_the_queue_time_include_cache_hits(clock: FakeClock) -> None:
    stats = new_statistics(summaries=True)
    for _ in range(2):
        record_success(stats, 1, (0,), (4 * MS, 5 * MS, 6 * MS, 7 * MS), 8 * MS)
    for _ in range(3):
        record_cache_hit(stats, 1000, 9 * MS)
    source = FakeSource([ModelSeries("m", "1", {}, stats, FakeVersion(), cache_enabled=True)])

    def quantiles() -> list[float]:
        series = parsed(rendered(Page(source, ALL, no_gpus, clock)))["nv_inference_queue_summary_us"]
        return [value for (_, labels), value in series.items() if {"0.5", "0.9"} & {text for _, text in labels}]

    assert quantiles() == [0, 4_000]
    for _ in range(RECENT_REQUESTS):
        record_cache_hit(stats, 1000, 10 * MS)
    assert quantiles() == [0, 0]
    for _ in range(RECENT_REQUESTS):
        record_success(stats, 1, (0,), (4 * MS, 5 * MS, 6 * MS, 7 * MS), 11 * MS)
    assert quantiles() == [4_000, 4_000], "the last 4,096 requests of both kinds together"


def test_the_response_cache_shows_the_series_of_tritons_local_cache(clock: FakeClock) -> None:
    cache = ResponseCache(4000)
    cache.used, cache.hits, cache.misses, cache.evictions = 1000, 2, 3, 1
    cache.lookup_ns, cache.insertion_ns = 17_999, 31_000
    families = parsed(rendered(Page(FakeSource(response_cache=cache), MetricsOptions(cpu=False), no_gpus, clock)))

    shown = {name: dict(series) for name, series in families.items() if name.startswith("nv_cache")}
    assert shown == {
        f"nv_cache_{name}": {(f"nv_cache_{name}", ()): value}
        for name, value in (
            ("util", 0.25), ("num_entries", 0), ("num_hits", 2), ("num_misses", 3), ("num_lookups", 5),
            ("num_evictions", 1), ("lookup_duration", 17), ("insertion_duration", 31),
        )
    }  # fmt: skip


def test_options_remove_families(source: FakeSource, clock: FakeClock) -> None:
    text = rendered(Page(source, parse_options(["counter_latencies=false"], cpu=False), no_gpus, clock)).decode()
    for absent in ("_duration_us", "_summary_us", "first_response", "nv_cpu", "nv_gpu", "nv_cache"):
        assert absent not in text
    assert 'nv_inference_request_success{model="plain",version="1"} 0\n' in text
    assert 'nv_inference_request_failure{model="plain",reason="REJECTED",version="1"} 0\n' in text
    assert 'nv_inference_pending_request_count{model="plain",version="1"} 2\n' in text


def test_without_models_their_families_print_nothing(clock: FakeClock) -> None:
    text = rendered(Page(FakeSource(), MetricsOptions(cpu=False), no_gpus, clock)).decode()
    assert "nv_inference" not in text
    assert text.endswith("\n")


def test_custom_families_cannot_break_the_page(clock: FakeClock) -> None:
    source = FakeSource(
        families=[
            CustomFamily(
                "mine", "two\nlines", "counter", [CustomSample({"model": "a"}, 2.0), CustomSample({"model": "b"}, 0.5)]
            ),
            CustomFamily("no name", "not readable", "gauge", [CustomSample({}, 1)]),
            CustomFamily("nv_inference_count", "taken", "gauge", [CustomSample({}, 1)]),
            CustomFamily("h", "histogram", "histogram", [CustomSample({}, 7.5, (1.0, 5.0), (1, 1, 1))]),
            CustomFamily("h_count", "a sample of h", "counter", [CustomSample({}, 3)]),
            CustomFamily("edge_serve_queue_duration_seconds_sum", "a sample of ours", "gauge", [CustomSample({}, 1)]),
            CustomFamily("nv_inference", "one sample is taken", "histogram", [CustomSample({}, 1, (1.0,), (1, 0))]),
        ]
    )
    text = rendered(Page(source, MetricsOptions(cpu=False), no_gpus, clock)).decode()
    assert '# HELP mine two\\nlines\n# TYPE mine counter\nmine{model="a"} 2\nmine{model="b"} 0.5\n' in text
    assert "no name" not in text
    assert "nv_inference" not in text
    assert "a sample of" not in text
    assert 'h_bucket{le="1"} 1\nh_bucket{le="5"} 2\nh_bucket{le="+Inf"} 3\nh_sum 7.5\nh_count 3\n' in text


def test_a_metric_tag_that_is_no_label_name_does_not_break_the_page(source: FakeSource, clock: FakeClock) -> None:
    source.series = [replace(source.series[0], tags={"my-tag": "1", "1st": "2", "_name__": "3"})]
    families = parsed(rendered(Page(source, MetricsOptions(), no_gpus, clock)))
    ((_, labels),) = families["nv_inference_count"]
    assert dict(labels) == {"_my_tag": "1", "_1st": "2", "_name__": "3", "model": "plain", "version": "1"}


def test_gpus_are_read_once_per_interval(source: FakeSource, clock: FakeClock) -> None:
    gpus = OneGpu()
    page = Page(source, ALL, gpus, clock)
    rendered(page)
    rendered(page)
    assert gpus.reads == 1
    clock.ns += ALL.interval_ns
    rendered(page)
    assert gpus.reads == 2


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool: apt-get install prometheus")
def test_promtool_complains_of_tritons_names_only(source: FakeSource, clock: FakeClock) -> None:
    source.families = [
        CustomFamily("h", "histogram", "histogram", [CustomSample({}, 7.5, (1.0, 5.0), (1, 1, 1))]),
        CustomFamily("h_sum", "a sample of h", "gauge", [CustomSample({}, 1)]),
        CustomFamily("edge_serve_queue_duration_seconds_sum", "a sample of ours", "gauge", [CustomSample({}, 1)]),
    ]
    page = rendered(Page(source, ALL, OneGpu(), clock))
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=30)
    complaints = [line for line in (done.stdout + done.stderr).decode().splitlines() if line.strip()]
    assert done.returncode in (0, 3), complaints
    assert [line for line in complaints if not line.startswith("nv_")] == []


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs prometheus: apt-get install prometheus")
def test_a_real_prometheus_scrapes_it(source: FakeSource, clock: FakeClock, tmp_path: Path) -> None:
    with _serve(rendered(Page(source, ALL, OneGpu(), clock))) as target, prometheus(tmp_path, target) as api:
        assert eventually(api, 'up{job="edge"}') == "1"
        assert eventually(api, 'nv_inference_count{model="plain"}') == "4"
        assert eventually(api, 'edge_serve_request_duration_seconds_count{model="plain"}') == "2"


@contextlib.contextmanager
def _serve(page: bytes) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_driver_that_hangs_delays_a_scrape_a_little_and_the_loop_not_at_all(
    source: FakeSource, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    class Hanging:
        def __call__(self) -> list[GpuReading]:
            go_on.wait(20)
            return []

    async def story() -> None:
        monkeypatch.setattr(page_module, "DEVICE_SECONDS", 0.05)
        page = Page(source, ALL, Hanging(), clock)
        scraping = asyncio.ensure_future(page.render())
        await asyncio.sleep(0.01)
        assert not scraping.done(), "the driver is waited for, in a thread"
        for pieces in (await scraping, await page.render()):
            assert b"nv_inference_request_success" in b"".join(pieces)
        go_on.set()

    asyncio.run(story())
