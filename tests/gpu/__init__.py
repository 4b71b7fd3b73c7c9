"""What only an NVIDIA GPU can show. Elsewhere each test is skipped, with the reason; `make hw-check` runs them."""
