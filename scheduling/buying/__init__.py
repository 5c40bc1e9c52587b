"""What to buy for jobs that nothing holds, and what becomes of a block as it nears its end."""
