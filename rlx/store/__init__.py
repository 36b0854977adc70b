"""Where experience rests: shards of arrays on disk, their codecs, and the dataset that reads them."""
