"""The directory of a Zarr group; loads zarr."""

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore


class ZarrDisk(LocalStore):
    """A directory that hides failed writes from zarr, which returns from the first one while others are under way."""

    failure: OSError | None = None

    def check(self) -> None:
        """Raise the error of the first failed write, if any."""
        if self.failure is not None:
            raise self.failure

    async def set(self, key: str, value: Buffer) -> None:
        """Write a file, as long as nothing has failed."""
        if self.failure is None:
            try:
                await super().set(key, value)
            except OSError as exc:
                self.failure = self.failure or exc
