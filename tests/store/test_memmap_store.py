from tests.contracts.store import StatisticsContract


class TestMemmap(StatisticsContract):
    store, codec = "memmap", "none"
