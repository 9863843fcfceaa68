"""What a person sees while a stage trains: a bar in a terminal, one line an epoch in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from nofe.training.loop import TrainState


class Progress(Protocol):
    """Told of every step and every epoch; the loop does not know who listens."""

    def begin(self, state: "TrainState", steps: int, batch: int) -> None: ...
    def advance(self, state: "TrainState", images: int) -> None: ...
    def end_epoch(self, line: dict[str, Any]) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str) -> None: ...


@contextmanager
def closing(progress: Progress) -> Iterator[None]:
    """A run that fails leaves the terminal as it was."""
    try:
        yield
    finally:
        progress.end()


class Silent:
    def begin(self, state: "TrainState", steps: int, batch: int) -> None:
        pass

    def advance(self, state: "TrainState", images: int) -> None:
        pass

    def end_epoch(self, line: dict[str, Any]) -> None:
        pass

    def end(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Lines(Silent):
    """For logs."""

    def begin(self, state: "TrainState", steps: int, batch: int) -> None:
        self._epochs = state.recipe.epochs

    def end_epoch(self, line: dict[str, Any]) -> None:
        print(f"{line['stage']:<12} epoch {line['epoch']:>3}/{self._epochs}  {epoch_in_words(line)}", flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)


class Bars(Silent):
    """For terminals: one bar a stage with loss, accuracy, images/s and the time left."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()
        self._bars: RichProgress | None = None

    def begin(self, state: "TrainState", steps: int, batch: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bars.start()
        self._task = self._bars.add_task(state.stage, total=steps, completed=state.step, text="")
        self._since, self._images, self._drawn = time.monotonic(), 0, 0.0

    def advance(self, state: "TrainState", images: int) -> None:
        self._images += images
        now = time.monotonic()
        if now - self._drawn < 0.2:
            return
        self._drawn = now
        speed = self._images / max(now - self._since, 1e-9)
        text = f"{speed:,.0f} images/s"
        if state.totals.device.type == "cpu":  # elsewhere reading the loss would make the device wait
            loss, accuracy = state.mean_loss_and_accuracy()
            text = f"loss {loss:.3f}  accuracy {accuracy:6.2%}  {text}"
        self._draw(state.step, text)

    def end_epoch(self, line: dict[str, Any]) -> None:
        self._draw(line["step"], epoch_in_words(line))

    def end(self) -> None:
        """The finished bar stays on the screen; the next stage draws below it."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)  # class names may hold brackets

    def _draw(self, step: int, text: str) -> None:
        if self._bars is not None:
            self._bars.update(self._task, completed=step, text=text)


class Counting:
    """How many of `total` images are done, and how fast; what an earlier command did says nothing of the speed."""

    def __init__(self, total: int, show: Callable[[int, "Counting"], None]) -> None:
        self.total, self.done = total, 0
        self._show, self._made, self._since = show, 0, time.monotonic()

    def advance(self, images: int) -> None:
        self._made += images
        self._go_on(images)

    def take_over(self, images: int) -> None:
        """Images that an earlier command has done already."""
        self._go_on(images)

    def in_words(self) -> str:
        speed = self._made / max(time.monotonic() - self._since, 1e-9)
        return f"{self.done:,} of {self.total:,} images" + (f"  {speed:,.0f} images/s" if self._made else "")

    def _go_on(self, images: int) -> None:
        before, self.done = self.done, self.done + images
        self._show(before, self)


@contextmanager
def counting(what: str, total: int) -> Iterator[Counting]:
    """A bar in a terminal for `total` images; in a log a line for every tenth of them."""
    if not sys.stdout.isatty():

        def tell(before: int, counting: Counting) -> None:
            if counting.done * 10 // max(total, 1) > before * 10 // max(total, 1):
                print(f"{what:<12} {counting.in_words()}", flush=True)

        yield Counting(total, tell)
        return

    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description:<12}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    with RichProgress(*columns, TimeRemainingColumn()) as bars:
        task = bars.add_task(what, total=total, text="")
        yield Counting(total, lambda _, counting: bars.update(task, completed=counting.done, text=counting.in_words()))


def progress_for_this_output() -> Progress:
    return Bars() if sys.stdout.isatty() else Lines()


def epoch_in_words(line: dict[str, Any]) -> str:
    words = f"loss {line['loss']:.3f}  accuracy {line['accuracy']:6.2%}"
    if line.get("test_accuracy") is not None:
        words += f"  test {line['test_accuracy']:6.2%}"
    if line.get("moved") is not None:
        words += f"  moved {line['moved']:>3}"
    return f"{words}  {line['images_per_second']:,.0f} images/s  {line['seconds']:.1f} s"
