"""Metrics for Prometheus: the catalogue, the text page, and the gauges of this machine.

`catalogue` is the one table; `page.Page.render()` reads a `source.StatisticsSource` at scrape time, so a request pays
nothing for a metric beyond its counters (models/run/statistics.py). Imports `messages` only. Start reading in
`catalogue`.

    catalogue   every exported metric
    custom      metrics that Python models make themselves (`pb_utils.MetricFamily`), gathered from all workers
    document    writes docs/metrics.md from the catalogue
    exposition  prometheus's text format 0.0.4, written by hand
    gpu         GPU gauges
    histogram   samples of histograms and summaries out of what `messages.statistics` counts
    machine     CPU and memory gauges of the whole machine, from /proc (the fields that Triton's src/metrics.cc
    options     `--metrics-config`
    page        the metrics page
    readers     how a family's series are read out of one scrape
    source      what a scrape reads
    thermal     temperatures of this machine
    updates     the status file of edge-ota
"""
