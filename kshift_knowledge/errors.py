"""Every error the domain raises: callers branch on the class, people read message and hint."""

from __future__ import annotations


class KshiftError(Exception):
    """
    Something kshift could not do.

    code: stable snake_case name, the same in the command line, HTTP and the tables.
    message: what happened, to which item or value, and why; no secret, query or customer text.
    hint: what to do about it.
    """

    code = "error"
    exit_code = 1
    is_retryable = False

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class SettingsError(KshiftError):
    """One or more settings are wrong; the message lists all of them."""

    code = "settings_invalid"
    exit_code = 2


class Refused(KshiftError):
    """kshift could do it but must not: a guard stands in the way. The hint says how to go on."""

    code = "refused"
    exit_code = 4


class NotReady(KshiftError):
    """Something needed is not reachable, not migrated or not installed."""

    code = "not_ready"
    exit_code = 3


class StoreUnavailable(NotReady):
    """The database does not answer; the same call may succeed later."""

    code = "store_unavailable"
    is_retryable = True


class DiskFull(NotReady):
    """The database has no room left: nothing was written, and waiting makes none."""

    code = "disk_full"


class NotFound(KshiftError):
    """The id does not exist inside the caller's scope (or at all: both look the same)."""

    code = "not_found"
    exit_code = 2


class WrongDimension(KshiftError):
    """A vector has another width than the generation stores."""

    code = "wrong_dimension"


class ItemError(KshiftError):
    """One item cannot be indexed; all others go on. Its old text is still served."""

    code = "item_failed"


class Unsettled(ItemError):
    """The file is being written; it waits for the next look and is no failure."""

    code = "unsettled"
    is_retryable = True


class ItemGone(ItemError):
    """The file was there when the tree was scanned and is no more; the next scan decides."""

    code = "item_gone"


class EmbeddingError(KshiftError):
    """
    The embedding provider refused or failed. Subclasses are what a caller can react to.

    retry_after_s: the wait the provider itself asked for, None when it named none.
    """

    code = "embedding_failed"
    exit_code = 3  # of a command that needs the provider itself; an item that fails is 1

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.retry_after_s = retry_after_s


class BadKey(EmbeddingError):
    """401: the provider does not know the key."""

    code = "embedding_bad_key"


class ModelRefused(EmbeddingError):
    """403 or 404: the key is good but may not use this model, or the model does not exist."""

    code = "embedding_model_refused"


class QuotaExhausted(EmbeddingError):
    """429 insufficient_quota: waiting does not help."""

    code = "embedding_quota_exhausted"


class BudgetExhausted(EmbeddingError):
    """The account's own budget is used up; it goes on when the period turns or the budget grows."""

    code = "budget_exhausted"
    is_retryable = True


class RateLimited(EmbeddingError):
    """429: too many requests."""

    code = "embedding_rate_limited"
    is_retryable = True


class InputTooLong(EmbeddingError):
    """400: one input is longer than the model reads."""

    code = "embedding_input_too_long"


class EmbedderUnreachable(EmbeddingError):
    """No answer in time, connection refused or broken, or a 5xx."""

    code = "embedding_unreachable"
    is_retryable = True


class MalformedAnswer(EmbeddingError):
    """The provider answered 200 with something that is not one good vector per input."""

    code = "embedding_malformed_answer"
    is_retryable = True
