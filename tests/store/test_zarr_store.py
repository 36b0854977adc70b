from tests.contracts.store import StatisticsContract, StoreContract


class TestZstdDict(StatisticsContract):
    store, codec = "zarr", "zstd-dict"


class TestZstd(StoreContract):
    store, codec = "zarr", "zstd"


class TestZstdRowByRow(StoreContract):
    store, codec = "zarr", "zstd:chunk=1"


class TestZstdWideChunks(StoreContract):
    store, codec = "zarr", "zstd:chunk=32,level=9"


class TestLz4(StoreContract):
    store, codec = "zarr", "lz4"


class TestUncompressed(StoreContract):
    store, codec = "zarr", "none"
