"""The schedule that every drafter learns by, and the way of its new weights into the program that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from streamfuse.research.online.notes import Buffer, Noted
from streamfuse.research.replaced import Replaceable
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.backends.executorch import ExecuTorchBackend


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a drafter learns, and how much.

    Attributes:
        every: answers between two updates (the paper's 8).
        steps: of the optimizer per update, each over all notes of the lesson.
        learning_rate: of AdamW, constant.
        buffer: answers whose notes are kept.
        replayed: older answers that are repeated in each step, so that what was learnt before is not lost.
    """

    every: int = 8
    steps: int = 4
    learning_rate: float = 1e-3
    buffer: int = 64
    replayed: int = 4

    def __post_init__(self) -> None:
        for name in ("every", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.replayed < 0:
            raise ValueError(f"replayed must be at least 0, not {self.replayed}")
        if self.buffer < self.every:
            raise ValueError(f"buffer must be at least {self.every}, the answers between updates, not {self.buffer}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, not {self.learning_rate}")


class Student(Protocol):
    """What learns: a model in PyTorch whose exported form runs."""

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The parameters that learn, in groups of an optimizer."""
        ...

    def loss(self, one: Noted) -> tuple[Tensor, int]:
        """Summed cross-entropy to the target's distributions (the divergence, but for a constant), and its terms."""
        ...

    def packed(self) -> Mapping[str, Tensor]:
        """What its exported program holds of what learns, by name."""
        ...


class Learner:
    """Lets a student learn while its exported program drafts.

    Args:
        student: its model says what the program does, and only what it calls its own changes.
        program: the exported file.
        folder: where programs with new weights are written; only the last one stays.
        use: takes the engine of a new program over, and closes the one before.

    Raises:
        ReplaceError: the program is of other weights.
    """

    def __init__(
        self,
        student: Student,
        program: Path,
        folder: Path,
        use: Callable[[Backend], None],
        schedule: Schedule | None = None,
        open_backend: Callable[[Path], Backend] = ExecuTorchBackend,
    ) -> None:
        self.schedule = schedule or Schedule()
        self.buffer = Buffer(self.schedule.buffer)
        self.updates, self.losses = 0, list[float]()
        self._student, self._folder, self._use, self._open = student, folder, use, open_backend
        groups = student.groups(self.schedule.learning_rate)
        self._parameters: list[torch.nn.Parameter] = [one for group in groups for one in group["params"]]
        for parameter in self._parameters:
            parameter.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.99))
        with torch.no_grad():
            self._program = Replaceable(program, student.packed())

    def note(self, one: Noted) -> None:
        """After each answer; every few of them the student learns."""
        self.buffer.add(one)
        if self.buffer.fresh >= self.schedule.every:
            self.update()

    def update(self) -> None:
        """Distil on what was noted, and draft with the new weights from now on.

        Where it is interrupted, the program and the weights are those before, and the notes are fresh still.
        """
        before = [parameter.detach().clone() for parameter in self._parameters]
        path = self._folder / f"program-{self.updates + 1}.pte"
        try:
            if not self._learn():
                return
            with torch.no_grad():
                self._program.write(path, self._student.packed())
            backend = self._open(path)
        except BaseException:
            with torch.no_grad():
                for parameter, value in zip(self._parameters, before, strict=True):
                    parameter.copy_(value)
            path.unlink(missing_ok=True)
            raise
        self._use(backend)
        self.buffer.learned()
        (self._folder / f"program-{self.updates}.pte").unlink(missing_ok=True)
        self.updates += 1

    def _learn(self) -> bool:
        """All steps of one update; False where nothing was rejected."""
        for _ in range(self.schedule.steps):
            texts = [one for one in self.buffer.lesson(self.schedule.replayed) if one.rejections]
            if not texts:
                return False
            self._optimizer.zero_grad()
            total, terms = 0.0, 0
            for one in texts:  # gradients add up: one step for all of them
                loss, count = self._student.loss(one)
                loss.backward()
                total, terms = total + float(loss.detach()), terms + count
            if not terms:
                return False
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(terms)
            self._optimizer.step()
            self.losses.append(total / terms)
        return True
