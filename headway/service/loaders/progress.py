"""How far a long step of the start is, for the person at the terminal."""

import sys
from typing import NoReturn, Protocol, TextIO

from tqdm import tqdm

PLAIN_STEPS = 4  # lines for one job where there is no terminal


class Progress(Protocol):
    """Told again and again how far a job is; the last call of a job has done == total."""

    def __call__(self, job: str, done_bytes: int, total_bytes: int) -> None:
        """`job` is what is being done, in a few words; a new one ends the old one."""
        ...


def silent(job: str, done_bytes: int, total_bytes: int) -> None:
    """A Progress that shows nothing."""


class ConsoleProgress:
    """A bar for each job on a terminal; elsewhere a plain line for every quarter of it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._job = ""
        self._bar: tqdm[NoReturn] | None = None
        self._step = -1

    def __call__(self, job: str, done_bytes: int, total_bytes: int) -> None:
        """Show that `done_bytes` of `total_bytes` are done."""
        if job != self._job:
            self.close()
            self._job, self._step = job, -1
        if self._is_terminal:
            self._show_bar(job, done_bytes, total_bytes)
        else:
            self._show_line(job, done_bytes, total_bytes)

    def close(self) -> None:
        """End the bar that is shown, if one is; a later call begins a new one."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._job = None, ""

    def _show_bar(self, job: str, done: int, total: int) -> None:
        bar = self._bar
        if bar is None:
            bar = tqdm(total=total, desc=job, unit="B", unit_scale=True, file=self._stream)
            self._bar = bar
        bar.update(done - bar.n)
        if done >= total:
            self.close()

    def _show_line(self, job: str, done: int, total: int) -> None:
        step = done * PLAIN_STEPS // max(total, 1)
        if step <= self._step:
            return
        self._step = step
        share = done / max(total, 1)
        print(
            f"{job}: {share:.0%} ({done / 1e6:.1f} of {total / 1e6:.1f} MB)",
            file=self._stream,
            flush=True,
        )
