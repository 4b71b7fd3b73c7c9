"""Optional parts around a runner: response cache, rate limiter, and models that call models.

cached_runner   the runner of a version with `response_cache { enable: true }`
calls           runs calls from models to models (business logic scripting)
rate_limit      delays batches until the rate limiter has resources for them (`--rate-limit=execution_count`)
response_cache  the response cache: keys, sizes, and eviction
wait_for_graph  detects deadlocks between models that call models
"""
