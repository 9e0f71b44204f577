"""The dead-letter office, beside the command line's own tests of it."""

from __future__ import annotations

import msgspec
from tests.support.shop import QUEUE

from matador import MessagePackCodec
from matador.codec.base import Codec
from matador.model.message import Message
from matador.testing import make_docket, make_envelope

DEAD = f"{QUEUE}.undeliverable"


def _letter(id_: str, codec: Codec, *, subscriber: str = "one", amount: int = 1) -> Message:
    data = msgspec.json.encode({"order_id": id_, "amount": amount})
    if isinstance(codec, MessagePackCodec):
        data = msgspec.msgpack.encode({"order_id": id_, "amount": amount})
    docket = make_docket(event_key="order.placed", subscriber=subscriber, attempts=3)
    encoded = codec.encode(make_envelope(msgspec.Raw(data), id=id_, docket=docket))
    return Message(id_, DEAD, encoded.body, encoded.headers, priority=4)
