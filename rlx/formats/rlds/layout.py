"""Names in the files of a dataset of TensorFlow Datasets, and in the examples of RLDS."""

INFO, FEATURES, METADATA = "dataset_info.json", "features.json", "metadata.json"
FILE_FORMAT = "tfrecord"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
EPISODE_ID, STEPS = "episode_id", "steps"
# Of an episode that rlx wrote: whether its recording was cut.
CUT = "cut"
# Fields that RLDS defines for a step.
FIRST, LAST, TERMINAL, DISCOUNT = "is_first", "is_last", "is_terminal", "discount"
FLAGS = (FIRST, LAST, TERMINAL)
LAYOUT = (
    "expected a version of a dataset of TensorFlow Datasets: dataset_info.json, features.json, *.tfrecord-* of an "
    "example an episode: steps/observation, action, reward, is_first, is_last, is_terminal, T + 1 rows of each"
)
