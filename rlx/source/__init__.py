"""Where experience comes from: readers of other projects' files, and the fetching of those files."""
