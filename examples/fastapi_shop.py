"""A FastAPI service that sends events and consumes nothing: uvicorn fastapi_shop:api"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from shop import OrderPlaced, app

from matador import Matador

# --8<-- [start:lifespan]


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
    async with app.producer() as producer:  # connects at the start, disconnects at the end
        api.state.producer = producer
        yield


def get_producer(request: Request) -> Matador:
    return request.app.state.producer


Producer = Annotated[Matador, Depends(get_producer)]
api = FastAPI(lifespan=lifespan)
# --8<-- [end:lifespan]


# --8<-- [start:routes]
@api.post("/orders", status_code=202)
async def place_order(order: OrderPlaced, producer: Producer, request: Request) -> dict[str, int]:
    result = await producer.send(order, correlation_id=request.headers.get("x-request-id"))
    return {"messages": result.sent}


@api.get("/health")
async def health(producer: Producer, response: Response) -> dict[str, str]:
    found = producer.health()
    if found.status != "healthy":
        response.status_code = 503
    return {"status": found.status, "connection": found.connection_state}


# --8<-- [end:routes]
