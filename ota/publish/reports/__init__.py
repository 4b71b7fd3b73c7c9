"""Collects the reports of devices, and asks the gate of a rollout.

collect     reads reports and verifies their signatures
history     stores the chain of each key's reports
summary     summarizes all reports
prometheus  counts devices by the metrics of a Prometheus server
gate        decides from reports or metrics whether the next step is allowed
"""
