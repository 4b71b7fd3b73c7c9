"""Reports of this device. `reporter` makes, signs, and sends them, `progress` has their words, `outbox` what waits."""
