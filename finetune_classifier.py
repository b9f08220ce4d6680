#!/usr/bin/env python3
"""Fine-tune a pretrained BERT on a GLUE task, or on your own file, in float32, float16 or bfloat16.

    python finetune_classifier.py --task_name MRPC --bert_model minilm_6_384_12 --dtype float16 --output_dir runs/mrpc
    python finetune_classifier.py --task_name RTE --bert_model path/to/model --gpu 0 --dtype bfloat16 --epochs 5 --lr 2e-5
    python finetune_classifier.py --train_file train.csv --dev_file dev.csv --bert_model minilm_6_384_12
    python finetune_classifier.py --task_name GLUE --seeds 0-4 --dtype float32 bfloat16 --output_dir runs/glue
    python finetune_classifier.py --report runs/glue other/runs --output_dir report
    python finetune_classifier.py --task_name AX --only_inference --model_parameters runs/mnli/model --output_dir runs/ax

Ctrl-C, SIGTERM and --max_minutes end a run with a checkpoint; the same command with --resume continues it exactly.

Exit codes: 0 done; 1 a run that failed; 2 wrong usage or input; 3 stopped before its end, to be continued by --resume.
An error is one line on stderr.
"""

import functools
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bert import InputError, RunError, Stopped
from bert.checkpoint import Checkpoints
from bert.config import (
    CompareConfig,
    FinetuneConfig,
    LeaderboardConfig,
    ReportConfig,
    SuiteConfig,
    parse,
    resume_command,
)
from bert.data import choose_task, load_splits
from bert.download import download_task
from bert.engines import choose_engine, load_engine, out_of_memory
from bert.folder import check_folder, check_same_inputs, claim_folder, is_finished
from bert.logs import RunLog, write_json
from bert.plan import describe_data, describe_model, describe_plan, make_batching, make_plan
from bert.precision import make_loss_scaler, resolve_precision
from bert.record import model_card, result_lines, run_record, training_results
from bert.stop import StopRequest
from bert.submission import choose_submissions, write_dev_predictions, write_mistakes, write_submission, write_zip
from bert.tokenization import load_tokenizer
from bert.training import Result, evaluate_splits, predict_logits, train
from bert.weights import initial_weights, load_pretrained, read_pretrained, recover_model, save_model


def run(config):
    start = time.perf_counter()
    log = RunLog(tensorboard=config.tensorboard)
    stop = StopRequest(config.max_minutes)

    # the folder: what must not be overwritten, or cannot be continued, is refused before anything is read
    earlier = None
    if not config.dry_run:
        models = (config.bert_model, config.pretrained_bert_parameters, config.model_parameters)
        claim = {"overwrite": config.overwrite, "resume": config.resume}
        sources = (*models, *config.own_files.values())
        earlier = check_folder(config.output_dir, flags=asdict(config), sources=sources, **claim)
        if earlier is not None and is_finished(config.output_dir):
            log.say(f"resume:    the run in {config.output_dir} is finished: nothing was done")
            # It may have been killed at its very end.
            shutil.rmtree(Path(config.output_dir) / "checkpoints", ignore_errors=True)
            return

    # engine and precision: what this machine cannot do is refused
    engine_name, why = choose_engine(config.engine, gpu=config.gpu)
    log.say(f"engine:    {engine_name} ({why})")
    module = load_engine(engine_name)
    precision = resolve_precision(config.dtype, module.capabilities(config.gpu), engine=engine_name, gpu=config.gpu)
    scaler = make_loss_scaler(config)
    log.say(f"precision: {precision.dtype}: {precision.reason}; {scaler.describe()}")

    # model
    pretrained = load_pretrained(
        bert_model=config.bert_model,
        bert_dataset=config.bert_dataset,
        pretrained_bert_parameters=config.pretrained_bert_parameters,
        model_parameters=config.model_parameters,
    )
    batching = make_batching(config, pretrained.architecture)
    tokenizer = load_tokenizer(pretrained.folder, pretrained.architecture)
    task = choose_task(config, saved_labels=pretrained.labels)
    weights, head = initial_weights(pretrained, task, seed=config.seed)
    if config.only_inference and head.startswith("fresh"):
        raise InputError(f"--only_inference: this model is not fine-tuned on {task.name}: its head would be {head}")
    for line in describe_model(pretrained, head, tokenizer):
        log.say(line)

    engine = module.create(
        pretrained.architecture,
        task.num_labels,
        dtype=precision.dtype,
        gpu=config.gpu,
        seed=config.seed,
        optimizer=config.optimizer,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
        checkpoint_activations=config.checkpoint_activations,
    )
    engine.set_weights(weights)
    log.say(f"device:    {engine.device}")
    for change in engine.range_changes:
        log.say(f"           range guard: {change}")

    # data
    if config.download:
        download_task(task, config.data_dir, log)
    data_dir = "" if config.own_files else config.data_dir
    splits, lines = load_splits(task, data_dir, train=not config.only_inference, tokenizer=tokenizer, max_len=config.max_len)
    plan = None if config.only_inference else make_plan(len(splits["train"].features), config)
    for line in [*lines, *describe_data(splits, task, tokenizer, plan, batching, config), *describe_plan(plan, config)]:
        log.say(line)
    if config.dry_run:
        log.say("dry run:   nothing was trained and nothing was written")
        return

    record = run_record(config, task, engine, why, precision, pretrained, splits, batching, plan)
    for line in [] if earlier is None else check_same_inputs(earlier, record):
        log.say(line)
    with claim_folder(config.output_dir, **claim) as folder, stop.listening():
        # where the run begins: at its beginning, or at a checkpoint
        checkpoints = Checkpoints(folder / "checkpoints", engine=engine, scaler=scaler, log=log)
        progress, logged = checkpoints.restore() or (Result(), 0)
        if config.resume:
            log.say(f"resume:    {progress.describe()}")
        if not progress.updates:
            write_json(folder / "config.json", record)

        # train
        dev = {name: split.features for name, split in splits.items() if name in task.split_names("dev")}
        evaluation_options = {"batch_size": config.dev_batch_size, "batching": batching, "stop": stop}
        results = {
            "task": task.name,
            "engine": engine.name,
            "device": engine.device,
            "dtype": precision.dtype,
            "seed": config.seed,
        }
        written = [folder / "results.json"]
        dev_outputs = {}

        def keep_logits(name, logits, kind="last"):
            dev_outputs[name] = (logits, dev[name].label_ids)
            write_dev_predictions(folder / "predictions", task, name, kind, *dev_outputs[name])

        if plan is None:
            keep = functools.partial(keep_logits, kind="saved")
            scores = evaluate_splits(engine, dev, task=task, log=log, keep_logits=keep, **evaluation_options)
            results["scores"] = {"saved": scores}
        else:
            written.append(folder / "model")
            recover_model(folder / "model")

            def keep_best(evaluation):
                card = model_card(task, config, pretrained, precision, evaluation)
                weights = engine.get_weights(copy=False)
                save_model(folder / "model", weights, pretrained, task=task, tokenizer=tokenizer, card=card)
                for name, outputs in dev_outputs.items():
                    write_dev_predictions(folder / "predictions", task, name, "best", *outputs)
                    write_mistakes(folder / "predictions", task, name, *outputs, splits[name].examples)

            log.open(folder / "log.jsonl", keep=logged)
            result = train(
                engine,
                splits["train"].features,
                dev,
                task=task,
                config=config,
                plan=plan,
                batching=batching,
                scaler=scaler,
                log=log,
                keep_best=keep_best,
                keep_logits=keep_logits,
                checkpoints=checkpoints,
                stop=stop,
                result=progress,
            )
            log.close()
            results.update(training_results(result, scaler, task))
            if result.best is not result.last:
                engine.set_weights(read_pretrained(folder / "model", "the best epoch").tensors)

        # predict, with the best epoch's weights
        for name in task.split_names("test"):
            if name in splits:
                logits = predict_logits(engine, splits[name].features, description=name, **evaluation_options)
                written.append(write_submission(folder / "predictions", task, name, logits))
        results["peak_memory_mib"] = round(engine.peak_memory() / 2**20)
        results["wall_seconds"] = round(time.perf_counter() - start, 3)
        write_json(folder / "results.json", results)
        checkpoints.remove()
        for line in [*result_lines(results), *(f"wrote {path}" for path in written)]:
            log.say(line)


def run_several(suite):
    from bert.suite import describe_suite, print_commands, run_suite  # here and below: what a single run need not wait for

    log = RunLog()
    if suite.print_commands:
        print_commands(suite, __file__, log)
    elif suite.runs[0].dry_run:
        describe_suite(suite, log)
    else:
        RunLog(tensorboard=suite.runs[0].tensorboard)  # a missing package is refused once, not by every run
        failed = run_suite(suite, __file__, log)
        if len(failed) < len(suite.runs):
            make_report(ReportConfig((suite.output_dir,), suite.output_dir))
        if failed:
            named = "; ".join(f"{name}: {error}" for name, error in failed[:5]) + "; ..." * (len(failed) > 5)
            raise RunError(
                f"{len(failed)} of {len(suite.runs)} runs failed: {named}; --resume --retry_failed tries them again"
            )


def make_report(config):
    from bert.report import table_lines, write_report
    from bert.runs import gather

    runs, log = gather(config.folders), RunLog()
    for line in [*table_lines(runs), *(f"wrote {path}" for path in write_report(runs, config.output_dir))]:
        log.say(line)


def make_zip(config):
    from bert.runs import gather

    files, lines = choose_submissions([run.folder for run in gather(config.folders) if run.results])
    if not files:
        raise InputError(
            f"--leaderboard {' '.join(config.folders)}: found no finished run of a GLUE task with test predictions"
        )
    log = RunLog()
    for line in [*lines, *write_zip(Path(config.output_dir) / "submission.zip", files)]:
        log.say(line)


def compare(config):
    from bert.verdict import compare_predictions

    log = RunLog()
    for line in compare_predictions(*config.files):
        log.say(line)


COMMANDS = {
    FinetuneConfig: run,
    SuiteConfig: run_several,
    ReportConfig: make_report,
    LeaderboardConfig: make_zip,
    CompareConfig: compare,
}


def main(argv=None):
    for stream in (sys.stdout, sys.stderr):  # whatever the terminal cannot show must not stop a run
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop ends a run as Ctrl-C does
    argv = sys.argv[1:] if argv is None else argv
    try:
        config = parse(argv, __doc__)
        COMMANDS[type(config)](config)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (Stopped, KeyboardInterrupt) as stop:
        print(f"stopped: {str(stop) or 'at once'}; this continues the run:", file=sys.stderr)
        print(resume_command(__file__, argv), file=sys.stderr)
        return 3
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        advice = "add --checkpoint_activations, or lower --batch_size (and raise --accumulate by as much), --dev_batch_size "
        advice += "or --max_len"
        print(f"error: out of memory: {advice}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
