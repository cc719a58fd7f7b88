"""Rank 1 sends and leaves while rank 0 is still sending to rank 1."""

import numpy as np

import herring

herring.init()
there, back = np.full(8_000_000, 7.0, np.float32), np.zeros(60_000_000, np.float32)
if herring.rank() == 1:
    herring.receive_async(back, 0, tag=2)
    herring.send(there, 0, tag=1)
    herring.shutdown()
else:
    lost = herring.send_async(back, 1, tag=2)
    place = np.zeros_like(there)
    herring.receive(place, 1, tag=1)
    assert (place == 7).all()
    try:
        lost.wait()
    except herring.PeerLostError as error:
        assert "rank 1" in str(error), error
    print("received", flush=True)
