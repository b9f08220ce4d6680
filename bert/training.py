"""The only training loop, and evaluation: above the seam, so the same for every engine and precision.

Decides batches, rates, scales and when to stop; the engine computes.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from bert import RunError, Stopped
from bert.data import evaluation_order, make_batch, training_order
from bert.logs import progress_bar
from bert.metrics import compute_metrics, mean_loss
from bert.schedule import learning_rate
from bert.stop import StopRequest


@dataclass
class Result:
    """What training has come to so far: plain numbers, and with them the place in the run from which it can go on."""

    evaluations: list = field(default_factory=list)  # one per finished epoch: epoch, step, primary, scores by split
    updates: int = 0  # attempted
    examples: int = 0
    tokens: int = 0  # real ones, padding not counted
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    stopped_early: bool = False

    @property
    def last(self):
        return self.evaluations[-1]

    @property
    def best(self):
        """The evaluation of the best epoch, the earliest at a tie; None while none is finite."""
        best = max(self.evaluations, key=lambda evaluation: evaluation["primary"], default=None)
        return None if best is None or best["primary"] == -math.inf else best

    @property
    def epochs_since_best(self):
        return self.last["epoch"] - (0 if self.best is None else self.best["epoch"])

    def describe(self):
        """Where a resumed run goes on, for the person."""
        if not self.updates:
            return "no checkpoint here yet: the run begins at its beginning"
        return f"from update {self.updates}, with {len(self.evaluations)} epoch(s) finished"


def train(
    engine,
    features,
    dev,
    *,
    task,
    config,
    plan,
    batching,
    scaler,
    log,
    keep_best,
    keep_logits=None,
    checkpoints=None,
    stop=None,
    result=None,
):
    """Train until plan.total_updates updates are done and return the Result, a new one or the one given to go on from.

    `features` is the training split, `dev` maps each dev split's name to its Features. After every epoch all of `dev` is
    scored; `keep_logits(split name, logits)` is called with the outputs, and then, if it is the best epoch so far,
    `keep_best(evaluation)` while its weights are in the engine. Every epoch and every config.save_steps updates end in a
    checkpoint. A StopRequest in `stop` is answered by one more checkpoint, and by Stopped.
    """
    result = Result() if result is None else result
    stop = StopRequest() if stop is None else stop
    recorder = _Recorder(log, scaler)
    bar = progress_bar(total=plan.total_updates, initial=result.updates, desc="train", unit=" updates")

    def save():
        recorder.flush()
        if checkpoints is not None:
            checkpoints.save(result)

    try:
        while len(result.evaluations) < plan.epochs and not result.stopped_early:
            epoch = len(result.evaluations)
            seconds = _stopwatch()
            order = training_order(features.lengths, batch_size=plan.batch_size, seed=config.seed, epoch=epoch)
            groups = [order[first : first + plan.accumulate] for first in range(0, len(order), plan.accumulate)]
            before = epoch * plan.updates_per_epoch  # updates of the epochs before this one
            for group in groups[result.updates - before : plan.total_updates - before]:
                rate = learning_rate(
                    result.updates, peak=config.lr, total_steps=plan.total_updates, warmup_ratio=config.warmup_ratio
                )
                examples = sum(map(len, group))
                losses, tokens = [], 0
                for rows in group:
                    batch = make_batch(features, rows, **vars(batching))
                    weight = len(batch) / examples  # of this micro-batch's mean in the mean over the update's examples
                    loss = engine.forward_backward(batch, loss_scale=scaler.scale, weight=weight)
                    losses.append((weight, loss))
                    tokens += batch.tokens
                update = engine.apply_gradients(
                    learning_rate=rate, max_grad_norm=config.max_grad_norm, loss_scale=scaler.scale
                )
                result.updates += 1
                result.examples += examples
                result.tokens += tokens
                recorder.add(result.updates, epoch + 1, losses, rate, update, tokens)
                bar.update()
                if result.updates % config.log_interval == 0:
                    bar.set_postfix_str(recorder.flush(), refresh=False)
                due = config.save_steps and result.updates % config.save_steps == 0
                if due:
                    engine.finish()
                result.train_seconds += seconds()
                if due:
                    save()
                    seconds()
                stop.check()
            recorder.flush()
            engine.finish()
            result.train_seconds += seconds()

            scores = evaluate_splits(
                engine,
                dev,
                task=task,
                batch_size=config.dev_batch_size,
                batching=batching,
                log=log,
                stop=stop,
                epoch=epoch + 1,
                keep_logits=keep_logits,
            )
            result.evaluations.append(
                {"epoch": epoch + 1, "step": result.updates, "primary": primary_score(task, scores), "scores": scores}
            )
            log.write([{"evaluation": result.last}])
            if result.best is result.last:
                keep_best(result.best)
            if config.early_stop and result.epochs_since_best >= config.early_stop:
                result.stopped_early = epoch + 1 < plan.epochs
            result.eval_seconds += seconds()
            save()
            recorder.restart_clock()
    except Stopped:  # only ever between two updates, or in an evaluation, which changes nothing
        save()
        raise
    finally:
        recorder.flush()  # a run that is stopped for good still logs the updates that led to it
        bar.close()
    if scaler.skipped_updates == result.updates:
        raise RunError(
            "every update was skipped because its gradients were not finite: nothing was learned; look for NaN in the "
            "weights it began with, lower --lr or the loss scale"
        )
    if scaler.skipped_updates > result.updates / 10:
        log.say(
            f"WARNING: {scaler.skipped_updates} of {result.updates} updates were skipped: the run learned less than planned"
        )
    if result.best is None:
        raise RunError("no epoch ended with finite outputs: the run has diverged; lower --lr or raise --warmup_ratio")
    return result


def _stopwatch():
    """A function that returns the seconds since it was last called, or made."""
    last = time.perf_counter()

    def seconds():
        nonlocal last
        now = time.perf_counter()
        passed, last = now - last, now
        return passed

    return seconds


class _Recorder:
    """Keeps each update's numbers on the device until the log is due: asking for them earlier would wait for the device.

    Only a dynamic loss scale needs its verdict before the next update can begin.
    """

    def __init__(self, log, scaler):
        self.log, self.scaler = log, scaler
        self.waiting = []
        self.restart_clock()

    def restart_clock(self):
        self.start = time.perf_counter()

    def add(self, step, epoch, losses, rate, update, tokens):
        record = {"step": step, "epoch": epoch, "learning_rate": rate, "loss_scale": self.scaler.scale, "tokens": tokens}
        self.waiting.append((record, losses, update))
        if self.scaler.dynamic:
            self._judge(record, update)

    def _judge(self, record, update):
        finite = update.finite
        record["skipped"] = not finite
        event = self.scaler.update(finite)
        if event:
            record["event"] = event
            self.log.say(f"step {record['step']}: {event}")

    def flush(self):
        """Write what is waiting to the log; returns a short text for the progress bar."""
        if not self.waiting:
            return ""
        records = []
        try:
            for record, losses, update in self.waiting:
                record["loss"] = sum(weight * float(loss) for weight, loss in losses)
                record["grad_norm"] = float(update.grad_norm)
                records.append(record)
                if not self.scaler.dynamic:
                    self._judge(record, update)
                if not (math.isfinite(record["loss"]) or record["skipped"]):
                    raise RunError(
                        f"the loss of step {record['step']} is {record['loss']}, though its gradients are finite: "
                        "the run has diverged; lower --lr or raise --warmup_ratio"
                    )
        finally:
            rate = sum(record["tokens"] for record in records) / max(time.perf_counter() - self.start, 1e-9)
            self.log.write([{**record, "tokens_per_second": round(rate, 1)} for record in records])
            self.waiting = []
            self.restart_clock()
        mean = np.mean([record["loss"] for record in records])
        return f"loss {mean:.4f}, {rate:.0f} tokens/s"


def predict_logits(engine, features, *, batch_size, batching, description, stop=None):
    """Logits (rows, num_labels) float32 in file order; computed longest rows first, off the device batch by batch.

    Stopped comes out between two batches, where `stop`, a StopRequest, says so.
    """
    batches = evaluation_order(features.lengths, batch_size=batch_size)
    logits = None
    for rows in progress_bar(batches, desc=description, unit=" batches", leave=False):
        if stop is not None:
            stop.check()
        part = engine.predict(make_batch(features, rows, **vars(batching)))
        if logits is None:
            logits = np.empty((len(features), part.shape[1]), np.float32)
        logits[rows] = part
    return logits


def evaluate_splits(engine, splits, *, task, batch_size, batching, log, stop=None, epoch=None, keep_logits=None):
    """Scores of labelled splits (name -> Features) as name -> metric -> float, each over its whole; the loss among them.

    `keep_logits(name, logits)` is given the outputs once all splits have theirs, so that a stop between leaves none.
    """
    scores_by_split, logits_by_split = {}, {}
    for name, features in splits.items():
        logits = predict_logits(engine, features, batch_size=batch_size, batching=batching, description=name, stop=stop)
        logits_by_split[name] = logits
        scores, warnings = compute_metrics(task.metrics, logits, features.label_ids, regression=task.regression)
        scores["loss"] = mean_loss(logits, features.label_ids, regression=task.regression)
        scores_by_split[name] = scores
        when = "" if epoch is None else f"epoch {epoch}, "
        log.say(f"{when}{name}: " + ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items()))
        for warning in warnings:
            log.say(f"WARNING: {name}: {warning}")
    if keep_logits is not None:
        for name, logits in logits_by_split.items():
            keep_logits(name, logits)
    return scores_by_split


def primary_score(task, scores_by_split):
    """The one number that selects the best epoch: the task's first metric, averaged over its dev files.

    Outputs that are not finite (then the loss is not either) lose against any score.
    """
    if not all(math.isfinite(scores["loss"]) for scores in scores_by_split.values()):
        return -math.inf
    return float(np.mean([scores[task.metrics[0]] for scores in scores_by_split.values()]))
