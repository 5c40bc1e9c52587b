"""What is bought and what becomes of it: decided, ordered, followed to its end, accounted for."""
