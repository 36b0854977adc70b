"""Names of the files and columns of LeRobot's datasets of version 3."""

INFO, EPISODES, TASKS = "meta/info.json", "meta/episodes", "meta/tasks.parquet"
# A table that rlx adds: LeRobot has no row for final observations.
FINALS = "meta/final_observations.parquet"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{FILE}.parquet"
DONE, TERMINATED, TRUNCATED = "next.done", "next.terminated", "next.truncated"
TASK, TASK_INDEX, TIMESTAMP = "task", "task_index", "timestamp"
# Columns derived from the position of a step.
FRAME, EPISODE, INDEX = "frame_index", "episode_index", "index"
# Of an episode: its steps, its file, its first step and the end of its steps in the dataset.
LENGTH, DATA_CHUNK, DATA_FILE = "length", "data/chunk_index", "data/file_index"
FIRST_INDEX, STOP_INDEX = "dataset_from_index", "dataset_to_index"
# In the table of final observations: whether the recording of the episode was cut.
CUT = "cut"
