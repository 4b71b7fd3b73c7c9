"""Tests of the pack `fil` with Treelite, and with the libraries that its models come from.

`python -m tests.packs.fil.libraries` installs XGBoost, LightGBM, and scikit-learn below build/packs, and trains the
models. `train` runs there. Everything else runs in the environment of the tests, where only Treelite's C library is
loaded, from the environment of the pack.
"""
