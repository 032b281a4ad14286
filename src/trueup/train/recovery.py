"""What becomes of a step that failed: left out, rolled back, done again in smaller micro-batches, or the end.

The policies are the recipe's (`failure`). Every decision is the same on all ranks: it follows from what all
of them know, or from what the leading one decided.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trueup.data import PlannedBatch
from trueup.recipe.survival import FailureSection
from trueup.schema import TrueupError

from .divergence import DivergedError, Divergence
from .failure import NoMemoryError
from .randomness import RandomState
from .scaling import LossScaler
from .session import Session
from .split import within
from .stepper import GlobalBatch, NonFiniteError, StepResult, gather, train_step
from .watch import first_non_finite, record


class RollBack(TrueupError):  # noqa: N818  (a request; an error only where nobody heeds it)
    """The run is to go back to its last checkpoint, with a smaller learning rate from there on: to one of a
    step below `before`, where later ones are not good either."""

    def __init__(self, message: str, before: int | None = None) -> None:
        super().__init__(message)
        self.before = before


class Recovery:
    """Carries out the policies around a step, and remembers what they need from step to step."""

    def __init__(self, section: FailureSection, scaler: LossScaler) -> None:
        self._section = section
        self.scaler = scaler
        self.divergence = Divergence(section.divergence)
        self.most_tokens: int | None = None  # of a micro-batch, once memory has run out
        self._in_a_row = 0  # skips or rollbacks
        self._failed_at = 0  # the last step that was skipped or rolled back from

    @classmethod
    def of(cls, session: Session) -> Recovery:
        recipe = session.recipe
        return cls(recipe.failure, LossScaler(recipe.precision))

    def gather(self, session: Session, planned: Sequence[PlannedBatch]) -> GlobalBatch:
        """The global batch, in micro-batches no larger than memory has been found to hold."""
        return gather(session, self._split(session, planned))

    def step(
        self, session: Session, planned: Sequence[PlannedBatch], batch: GlobalBatch, lr: float, *, step: int
    ) -> StepResult:
        """Train step number `step` on `batch`, which is `gather` of `planned`.

        Raises NonFiniteError, RollBack or NoMemoryError where the policy, or the end of its patience, says
        so.
        """
        before = RandomState.of(session.device)
        while True:
            try:
                result = train_step(session, batch, lr, self.scaler)
            except NonFiniteError as error:
                return self._non_finite(session, batch, before, error, lr, step)
            except NoMemoryError as error:
                refused = error
            else:
                break
            batch = self._smaller(session, planned, refused, step)
            before.restore()
        if not result.skipped and step > self._failed_at:
            self._in_a_row = 0
        return result

    def look(self, session: Session, result: StepResult, lr: float, *, step: int) -> None:
        """Look at the loss of a recorded step. Raises DivergedError or RollBack where it diverged and the
        policy says so."""
        section, found = self._section.divergence, self.divergence
        if not session.world.agree(found.look(math.nan if result.skipped else result.loss, step)):
            return
        in_a_row = step - found.since + 1  # more than `section.steps` where a resume lowered that
        left_out = in_a_row - len(found.losses)
        message = (
            f"the loss was above {section.factor:g} times its running median of {found.median:.4g} for "
            f"{in_a_row} steps in a row, to step {step}, and at last {found.losses[-1]:.4g}"
            + (f" ({left_out} of them left out)" if left_out else "")
        )
        facts: dict[str, Any] = {"median": found.median, "losses": list(found.losses)}
        session.timeline.event("divergence", message, step=step, lr=lr, action=section.action, **facts)
        if section.action == "ignore":
            return
        if section.action == "rollback" and not self._had_enough(step):
            # The checkpoint of the step before already has the weights that gave the first high loss.
            raise RollBack(message, before=found.since - 1)
        advice = "Try a smaller optimizer.lr or more schedule.warmup_steps"
        raise DivergedError(f"{message}{self._patience()}. {advice}", found.median, found.losses)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {
            "most_tokens": self.most_tokens,
            "in_a_row": self._in_a_row,
            "failed_at": self._failed_at,
            "divergence": self.divergence.state(),
            "loss_scale": self.scaler.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. What was learnt since is kept, for a rollback: that memory ran out, and how
        often the run has failed at a step that it has not passed yet."""
        known = [one for one in (self.most_tokens, state["most_tokens"]) if one is not None]
        self.most_tokens = min(known, default=None)
        self._in_a_row = max(self._in_a_row, int(state["in_a_row"]))
        self._failed_at = max(self._failed_at, int(state["failed_at"]))
        self.divergence.restore(state["divergence"])
        self.scaler.restore(dict(state["loss_scale"]))

    def _non_finite(
        self,
        session: Session,
        batch: GlobalBatch,
        before: RandomState,
        error: NonFiniteError,
        lr: float,
        step: int,
    ) -> StepResult:
        result = error.result
        if result is None:
            raise error
        finding = first_non_finite(session, batch, before, scale=result.loss_scale)
        record(session, finding, result, lr=lr, step=step, action=self._section.non_finite)
        message = f"{finding.message}: {error}"
        if self._section.non_finite == "stop" or self._had_enough(step):
            raise NonFiniteError(f"{message}{self._patience()}", result) from None
        if self._section.non_finite == "rollback":
            raise RollBack(message) from None
        return result

    def _had_enough(self, step: int) -> bool:
        self._in_a_row += 1
        self._failed_at = max(self._failed_at, step)
        return self._in_a_row > self._section.most

    def _patience(self) -> str:
        spent = self._in_a_row > self._section.most
        return f" (after {self._section.most} skips or rollbacks in a row)" if spent else ""

    def _split(self, session: Session, planned: Sequence[PlannedBatch]) -> tuple[PlannedBatch, ...]:
        if self.most_tokens is None:
            return tuple(planned)
        plan = session.plan
        fixed = plan.static or session.device.static_shapes_only
        return within(
            planned,
            self.most_tokens,
            session.training.lengths,
            multiple=plan.multiple,
            shapes=plan.training if fixed else None,
        )

    def _smaller(
        self, session: Session, planned: Sequence[PlannedBatch], refused: NoMemoryError, step: int
    ) -> GlobalBatch:
        """The batch in micro-batches of half as many tokens. Raises the refusal where that is not wanted or
        not possible; either way it is on record for later runs."""
        tokens = refused.shape[0] * refused.shape[1]
        before = self._split(session, planned)
        self.most_tokens = max(1, tokens // 2)
        after = self._split(session, planned)
        facts: dict[str, Any] = {
            "step": step,
            "refused": list(refused.shape),
            "tokens": tokens,
            "at_most": self.most_tokens,
            "cause": str(refused),
        }
        what = f"no memory for a micro-batch of {refused.shape[0]} x {refused.shape[1]} tokens in step {step}"
        if self._section.out_of_memory == "stop" or after == before:
            why = "failure.out_of_memory is stop" if after != before else "it cannot be cut any smaller"
            session.timeline.event("out_of_memory", f"{what}: {why}", done="ended", **facts)
            raise NoMemoryError(f"{what}: {why} ({refused})", refused.shape)
        message = f"{what}: the same step in {len(after)} micro-batches instead of {len(before)}"
        session.timeline.event("out_of_memory", message, done="halved", micro_batches=len(after), **facts)
        _let_go(session)
        return gather(session, after)


def _let_go(session: Session) -> None:
    """Give the device back what the failed attempt reserved."""
    import torch

    gc.collect()
    if session.device.kind != "cpu" and torch.accelerator.is_available():
        torch.accelerator.empty_cache()
