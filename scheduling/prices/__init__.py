"""What to pay: order books as columns, limits, what fills amount to."""
