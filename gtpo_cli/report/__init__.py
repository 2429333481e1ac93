"""Finished runs -> pages, pictures, tables (no torch)."""
