"""Decisions about models that are served."""
