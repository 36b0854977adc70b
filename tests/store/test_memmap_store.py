from tests.contracts.store import StoreContract


class TestMemmap(StoreContract):
    store, codec = "memmap", "none"
