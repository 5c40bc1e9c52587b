"""Clients of compute markets behind one interface."""
