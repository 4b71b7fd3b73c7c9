"""Tests of the packs with their real libraries.

`python -m tests.packs.environments` installs the libraries below build/packs. Without them these tests are skipped;
.ci/run installs them, and sets PACKS_REQUIRED=1, with which a library that is missing fails.
"""
