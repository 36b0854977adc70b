import threading

import pytest

from rlx.buffer.read_write_lock import ReadWriteLock


def test_readers_are_in_together() -> None:
    lock, both = ReadWriteLock(), threading.Barrier(2, timeout=20)

    def read() -> None:
        with lock.read():
            both.wait()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken


def test_a_writer_is_alone() -> None:
    lock, value, torn = ReadWriteLock(), [0, 0], []

    def write() -> None:
        for _ in range(200):
            with lock.write():
                value[0] += 1
                value[1] += 1

    def read() -> None:
        for _ in range(200):
            with lock.read():
                if value[0] != value[1]:
                    torn.append(tuple(value))

    threads = [threading.Thread(target=target) for target in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value == [400, 400]
    assert not torn


def test_an_error_inside_releases_it() -> None:
    lock = ReadWriteLock()
    for side in (lock.read, lock.write):
        with pytest.raises(ZeroDivisionError), side():
            _ = 1 / 0
    with lock.write():
        pass
