"""Names in the directories that ``TensorDict.memmap`` writes."""

METADATA = "meta.json"
SUFFIX = ".memmap"
# A leaf of texts: one for each step, or the same for all.
TEXT_CLASSES = ("NonTensorStack", "NonTensorData")
