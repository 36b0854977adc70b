"""Views of datasets: contact sheets, films, plots, and a page that has all of them.

``files.write_view`` writes one; ``page.ViewServer`` serves the page.
"""
