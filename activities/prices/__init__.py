"""Series of prices: reading them, storing them, and which jobs wait for one to fall."""
