"""What an agent does on its node: processes, their folders and logs, and what the machine has."""
