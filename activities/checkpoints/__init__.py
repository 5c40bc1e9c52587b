"""What jobs saved: the store, what it says, and whether a save is due."""
