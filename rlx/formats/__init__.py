"""File formats of other projects: a folder each, with a reader, a writer, or both.

``finding.find_run`` opens files of any format, and ``registry.formats`` lists the formats.
"""
