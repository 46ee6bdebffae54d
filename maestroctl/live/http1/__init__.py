"""HTTP/1.1 for the two inner hops: coordinator to node daemon, node daemon to engine.

Every token of every stream passes here twice, so this is httptools on asyncio transports and
nothing more: one request at a time per connection, bodies of requests in one piece, answers as
they come. Peers are our own processes, and engines. Clients from outside meet the gateway's
server instead, which is aiohttp.
"""
