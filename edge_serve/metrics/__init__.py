"""What Prometheus sees: the catalogue of metrics, the text page, and the gauges of this machine.

`catalogue` is the one table; `page.Page.render()` reads a `source.StatisticsSource` at scrape time, so a request pays
nothing for a metric beyond its counters (models/run/statistics.py). Imports `messages` only. Start reading in
`catalogue`.
"""
