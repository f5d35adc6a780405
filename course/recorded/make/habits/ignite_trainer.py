"""Ignite's supervised trainer with `gradient_accumulation_steps`, and its EMAHandler."""

import ignite
import torch
from experiment import ROWS, STEPS, Linear, Watched, cells, counted, logged, report
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import EMAHandler, LRScheduler


def train(epochs):
    model = Linear()
    optimizer = Watched(model.parameters())
    engine = create_supervised_trainer(
        model, optimizer, lambda prediction, _: prediction, gradient_accumulation_steps=STEPS
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    engine.add_event_handler(Events.ITERATION_COMPLETED, LRScheduler(schedule))
    average, times = EMAHandler(model), []
    average._update_ema_model = lambda *_: times.append(1)
    average.attach(engine)
    outputs = []
    engine.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: outputs.append(engine.state.output)
    )
    engine.run([(row, row) for row in ROWS], max_epochs=epochs)
    return optimizer.gradients, schedule.last_epoch, len(times), outputs


seen, _, _, outputs = train(2)
once, schedule, times, _ = train(1)
report(
    version=f"pytorch-ignite {ignite.__version__}",
    **cells(seen, once, schedule),
    ema=counted(times, len(once)),
    logs=logged(outputs[STEPS - 1]),
    replays_dropout="",
)
