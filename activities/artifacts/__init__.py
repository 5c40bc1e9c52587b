"""The artifact store: what jobs bring along, in objects that are named by their content."""
