"""Metrics for Prometheus: the catalogue, the text page, and the gauges of this machine.

`catalogue` is the one table; `page.Page.render()` reads a `source.StatisticsSource` at scrape time, so a request pays
nothing for a metric beyond its counters (models/run/statistics.py). Start reading in `catalogue`.

    catalogue   every metric that the server exports
    custom      metrics of Python models (`pb_utils.MetricFamily`), collected from all workers
    exposition  Prometheus' text format 0.0.4, and the samples of histograms and summaries
    gpu         gauges of NVIDIA GPUs
    machine     CPU, memory and temperatures of the machine
    nvml        the calls of NVIDIA's management library, whose values may be unknown
    options     `--metrics-config`
    page        the answer to GET /metrics
    readers     read a family's series out of one scrape
    source      the source of a scrape
    updates     the status file of edge-ota
"""
