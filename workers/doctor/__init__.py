"""Looks whether everything that Longshore needs is there, and says what to do where it is not."""
