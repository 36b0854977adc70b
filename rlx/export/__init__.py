"""Where experience goes: files that other programs read."""
