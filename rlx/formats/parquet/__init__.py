"""Parquet tables of steps."""
