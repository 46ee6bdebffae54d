"""The node daemon: the only process that opens engine sockets.

`host` owns `NodeCore` and carries out its effects; `relay` carries one stage to an engine and its
answer back; `engine_set` builds and keeps the engines; `daemon` listens, speaks to the coordinator
and ends when it is told or left alone; `memory` reads what the machine and the engines really use.
"""
