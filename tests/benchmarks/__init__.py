"""The programs in benchmarks/, beside the benchmarks themselves."""
