"""Tenants, budgets and charges in the database."""
