"""A real HTTP process that behaves like vLLM's OpenAI server, with failure switches.

What it is for: tests of supervisors, adapters and gateways that need a process with a socket,
memory that can be measured, and a protocol that breaks on demand; and load tests in which the
engine must cost next to nothing. One conformance suite runs against this stub and real vLLM.

Theory of operation::

    bytes -> http_server.HttpConnection -> routes (api_openai, api_control, api_info)
          -> engine.StubEngine -> generation.Generation (slots, pacing, pause, KV blocks)
          -> reply -> shapes -> bytes

* One process, one thread, one event loop. The HTTP layer is a small `asyncio.Protocol`, because a
  full framework would double the start time and cost more CPU than everything else together.
* Text is a function of (model, prompt): ``text.plan_chat`` decides the whole answer when a request
  arrives; ``Generation`` only decides *when* each token becomes visible. Freezing, preempting or
  sleeping in the middle therefore cannot change a text, which is what the tests compare.
* Weights and KV cache are private anonymous pages that are really touched (``memory``), so a
  reading of the proportional set size sees them come and go.
* Failure switches live in ``faults``, and ``POST /stub/faults`` changes them in a running process.
* Generating while weights or KV are gone kills the process, as it does in a real engine.

What it does not do: sampling, logprobs, n > 1, LoRA, multimodal input, a second process for the
engine core, TLS.

Run it: ``python -m maestroctl.testing.stub_engine --uds /tmp/stub.sock --model demo``.
See also: ``maestroctl.testing.stub.launch_stub``.
"""
