"""The one exception tree of maestroctl.

::

    MaestroError
      ConfigError          a file, value or name a user wrote: where, what was found, what to try
        ConfigErrors       every mistake of one file, together
      FleetError           a machine of the fleet
        NodeUnreachable
        ProtocolMismatch
      EngineError          an engine process
        EngineStartFailed  it exited, or never became ready
        ReadyTimeout       the start limit passed; names the setting that raises it
        EngineExited       it died while serving
        CapabilityMissing  this engine version cannot do what was asked
      RequestError         an HTTP request; carries `code` and `http_status`
        InvalidRequest     400
        Unauthorized       401
        UnknownModel       404
        RequestTooLarge    413
        Overloaded         429
        UpstreamFailed     502
        Unavailable        503
      ModelSourceError     weights that cannot be had
      StoreError           the state database
        StateLocked        another coordinator owns it; names its pid
      PredictorError
        ArtifactMissing
        SchemaMismatch
      InvariantViolation   our bug; carries the story of the stage or engine

The type says whose fault it is: ours (`InvariantViolation`), a peer's, or the user's.
A refusal that can happen on a good day is an `Outcome`, not an exception.
"""

from __future__ import annotations

from collections.abc import Sequence


class MaestroError(Exception):
    """Base of every error maestroctl raises on purpose.

    Args:
        message: what was being done, to what, what was found.
        hint: what to try; shown on a line of its own.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(MaestroError):
    """A mistake in something a user wrote.

    Args:
        message: what is wrong.
        file: path of the file, as the user gave it.
        key: dotted key path, for instance ``model[1].max_model_len``.
        line: 1-based line, where known.
        hint: what to try.
        found: the value as it was written, where it is safe to show.
        expected: what would have been right.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        key: str | None = None,
        line: int | None = None,
        hint: str | None = None,
        found: str | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.key = key
        self.line = line
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
        # A value of the command line or the environment has its key for a place already.
        key = None if self.key and place.endswith(f" {self.key}") else self.key
        return ": ".join(part for part in (place, key, self.message) if part)


class ConfigErrors(ConfigError):
    """Every mistake found in one file, in the order of its lines.

    Args:
        errors: at least one; each keeps its own place and hint.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(
            first.message,
            file=first.file,
            key=first.key,
            line=first.line,
            hint=first.hint if len(errors) == 1 else None,
            found=first.found,
            expected=first.expected,
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return super().__str__()
        lines = [f"{len(self.errors)} mistakes"]
        for error in self.errors:
            lines.append(f"  {error}")
            if error.hint:
                lines.append(f"    {error.hint}")
        return "\n".join(lines)


class FleetError(MaestroError):
    """A machine of the fleet did not do its part."""


class NodeUnreachable(FleetError):
    """The node daemon does not answer."""


class ProtocolMismatch(FleetError):
    """The node daemon speaks another protocol version."""


class EngineError(MaestroError):
    """An engine process did not do what was asked."""


class EngineStartFailed(EngineError):
    """The engine exited, or could not be launched, before it was ready."""


class ReadyTimeout(EngineError):
    """The engine was not ready within its start limit."""


class EngineExited(EngineError):
    """The engine died while it served."""


class CapabilityMissing(EngineError):
    """This engine version cannot do what was asked of it."""


class RequestError(MaestroError):
    """A request that gets an OpenAI-shaped error body.

    Args:
        message: for the caller, in one sentence.
        param: the field at fault, where there is one.
        code: machine-readable code; the class default otherwise.
        retry_after_s: sent as ``Retry-After``.
    """

    http_status = 500
    code = "internal_error"
    type = "api_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        # A name of a header may come as a subclass of `str` that JSON encoders refuse.
        self.param = None if param is None else str(param)
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """400: the request names the field at fault."""

    http_status, code, type = 400, "invalid_request", "invalid_request_error"


class Unauthorized(RequestError):
    """401: no key, or an unknown one."""

    http_status, code, type = 401, "invalid_api_key", "authentication_error"


class UnknownModel(RequestError):
    """404: no such model, alias or group."""

    http_status, code, type = 404, "model_not_found", "invalid_request_error"


class RequestTooLarge(RequestError):
    """413: the body is over the limit."""

    http_status, code, type = 413, "request_too_large", "invalid_request_error"


class Overloaded(RequestError):
    """429: full for now."""

    http_status, code, type = 429, "overloaded", "rate_limit_error"


class UpstreamFailed(RequestError):
    """502: the engine failed."""

    http_status, code, type = 502, "engine_failed", "api_error"


MODEL_UNAVAILABLE = "model_unavailable"
"""Code of an `Unavailable` that trying again cannot help: nothing will ever serve this."""


class Unavailable(RequestError):
    """503: nothing can serve this, now or (code `MODEL_UNAVAILABLE`) ever."""

    http_status, code, type = 503, "unavailable", "api_error"


class ModelSourceError(MaestroError):
    """The weights of a model cannot be had."""


class StoreError(MaestroError):
    """The state database refused."""


class StateLocked(StoreError):
    """Another coordinator owns the state; the message names its pid."""


class PredictorError(MaestroError):
    """A learned artifact cannot be used."""


class ArtifactMissing(PredictorError):
    """No artifact where one was expected."""


class SchemaMismatch(PredictorError):
    """The artifact was made for another schema or library version."""


class InvariantViolation(MaestroError):
    """A bug of ours: a table of a core contradicts itself, or an event was impossible.

    Args:
        message: the rule that was broken.
        story: what the core saw of the stage or engine concerned, oldest first.
    """

    def __init__(self, message: str, *, story: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.story = story
