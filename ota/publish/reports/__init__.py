"""What devices say: `collect` reads and verifies their reports, `memory` has what earlier ones said, `summary` sums up.

`prometheus` asks metrics in their place, and `gate` decides with either.
"""
