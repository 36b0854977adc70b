"""Views of datasets: contact sheets, films, plots, and a page that has all of them.

``files.write_view`` writes one; ``server.ViewServer`` serves the page.
"""
