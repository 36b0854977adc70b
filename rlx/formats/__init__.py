"""File formats of other projects: a folder each, with a reader, a writer, or both."""
