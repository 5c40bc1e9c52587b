"""Jobs that span nodes: groups onto domains, whole or not at all."""
