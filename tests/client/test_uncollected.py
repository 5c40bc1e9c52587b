"""The search for garbage stands still while somebody is within, and goes on when the last left."""

import gc
import threading

from longshore.client.uncollected import uncollected


def test_it_goes_on_when_the_last_of_several_threads_has_left() -> None:
    assert gc.isenabled()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with uncollected():
        thread.start()
        assert inside.wait(60)
        with uncollected():
            assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_where_it_was_off_it_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
