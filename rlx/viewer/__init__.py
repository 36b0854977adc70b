"""Datasets to look at: contact sheets, films, plots, and a page that holds all of it."""
