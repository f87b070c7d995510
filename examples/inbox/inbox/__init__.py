"""An inbox of webhook deliveries: stored once, counted once."""
