"""Extras that stand around a runner: response cache, rate limiter, and models that call models.

cached_runner   a version with `response_cache { enable
calls           models that call models (business logic scripting)
rate_limit      what stands between drivers and workers with `--rate-limit=execution_count`
response_cache  the response cache as a policy
wait_for_graph  which instances wait for which, while models call models
"""
