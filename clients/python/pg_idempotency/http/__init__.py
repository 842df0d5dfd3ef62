"""HTTP: idempotency keys for the routes of a service. The core knows no framework; adapters are thin."""

from .core import Core, Exchange, Options, Reply, Request, Store, current

__all__ = ["Core", "Exchange", "Options", "Reply", "Request", "Store", "current"]
