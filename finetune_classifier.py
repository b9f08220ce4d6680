#!/usr/bin/env python3
"""Fine-tune a pretrained BERT on a GLUE task, or on your own file, in float32, float16 or bfloat16.

    python finetune_classifier.py --task_name MRPC --bert_model minilm_6_384_12 --dtype float16 --output_dir runs/mrpc
    python finetune_classifier.py --task_name RTE --bert_model path/to/model --gpu 0 --dtype bfloat16 --epochs 5 --lr 2e-5
    python finetune_classifier.py --train_file train.csv --dev_file dev.csv --bert_model minilm_6_384_12
    python finetune_classifier.py --task_name AX --only_inference --model_parameters runs/mnli/model --output_dir runs/ax

Exit codes: 0 done; 1 a run that failed; 2 wrong usage or input. An error is one line on stderr.
"""

import sys
import time
from dataclasses import asdict

from bert import InputError, RunError
from bert.config import parse
from bert.data import choose_task, load_splits
from bert.download import download_task
from bert.engines import choose_engine, load_engine
from bert.logs import RunLog, check_folder, claim_folder, write_json
from bert.plan import Batching, describe_data, describe_plan, make_plan
from bert.precision import make_loss_scaler, resolve_precision
from bert.report import data_digests, model_card, result_lines, training_results, versions
from bert.submission import write_submission
from bert.tokenization import load_tokenizer
from bert.training import evaluate_splits, predict_logits, train
from bert.weights import file_digest, initial_weights, load_pretrained, read_pretrained, save_model


def run(config):
    start = time.perf_counter()
    log = RunLog()

    # What this machine cannot do, or must not overwrite, is refused before anything is read.
    engine_name, why = choose_engine(config.engine, gpu=config.gpu)
    module = load_engine(engine_name)
    log.say(f"engine:    {engine_name} ({why})")
    capabilities = module.capabilities(config.gpu)
    precision = resolve_precision(config.dtype, capabilities, engine=engine_name, gpu=config.gpu)
    scaler = make_loss_scaler(config)
    log.say(f"precision: {precision.dtype}: {precision.reason}")
    log.say(f"           {scaler.describe()}")
    if not config.dry_run:
        check_folder(config.output_dir, overwrite=config.overwrite)

    # Model.
    pretrained = load_pretrained(
        bert_model=config.bert_model,
        bert_dataset=config.bert_dataset,
        pretrained_bert_parameters=config.pretrained_bert_parameters,
        model_parameters=config.model_parameters,
    )
    architecture = pretrained.architecture
    if config.max_len > architecture.max_length:
        raise InputError(f"--max_len is {config.max_len}, but the model has positions for {architecture.max_length} tokens")
    tokenizer = load_tokenizer(pretrained.folder, architecture)
    task = choose_task(config.task_name, config.own_files, regression=config.regression, saved_labels=pretrained.labels)
    weights, fresh_head, head_lines = initial_weights(pretrained, task, seed=config.seed)
    if config.only_inference and fresh_head:
        raise InputError(
            f"--only_inference needs a model fine-tuned on {task.name}; this one's head would be {head_lines[0]}"
        )
    log.say(
        f"model:     {pretrained.source}: {architecture.model_type}, {architecture.num_hidden_layers} layers, "
        f"{architecture.hidden_size} wide, {len(pretrained.tensors)} tensors loaded, {pretrained.unused} unused"
    )
    for line in [*head_lines, f"tokenizer: {tokenizer.description}"]:
        log.say(f"           {line}")

    # Data.
    if config.download:
        download_task(task, config.data_dir, log)
    splits, lines = load_splits(
        task,
        "" if config.own_files else config.data_dir,
        train=not config.only_inference,
        tokenizer=tokenizer,
        max_len=config.max_len,
    )
    for line in lines:
        log.say(line)
    round_to = config.max_len if config.pad else config.round_to or (1 if config.gpu is None else 8)
    batching = Batching(pad_id=tokenizer.pad_id, round_to=round_to, max_len=config.max_len)
    plan = None
    if not config.only_inference:
        plan = make_plan(
            len(splits["train"].features),
            batch_size=config.batch_size,
            accumulate=config.accumulate,
            epochs=config.epochs,
            training_steps=config.training_steps,
            warmup_ratio=config.warmup_ratio,
        )
    for line in describe_data(splits, task, tokenizer, plan, batching, config) + describe_plan(plan, config):
        log.say(line)
    if config.dry_run:
        log.say("dry run: nothing was trained, nothing was written")
        return

    # The run's record, whole before the first update.
    folder = claim_folder(config.output_dir)
    engine = module.create(
        architecture,
        task.num_labels,
        dtype=precision.dtype,
        gpu=config.gpu,
        seed=config.seed,
        optimizer=config.optimizer,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
    )
    engine.set_weights(weights)
    log.say(f"device:    {engine.device}")
    record = {
        "config": asdict(config),
        "task": task.name,
        "labels": task.labels,
        "engine": {"name": engine_name, "why": why, "device": engine.device},
        "precision": asdict(precision),
        "model": {"source": pretrained.source, "sha256": file_digest(pretrained.weight_file)},
        "data_sha256": data_digests(splits),
        "batching": asdict(batching),
        "plan": plan and asdict(plan),
        "versions": versions(engine_name),
    }
    write_json(folder / "config.json", record)

    results = {
        "task": task.name,
        "engine": engine_name,
        "device": engine.device,
        "dtype": precision.dtype,
        "seed": config.seed,
    }
    dev = {name: splits[name].features for name in task.split_names("dev") if name in splits}
    if plan is None:
        scores = {
            "saved": evaluate_splits(engine, dev, task=task, batch_size=config.dev_batch_size, batching=batching, log=log)
        }
        results["scores"] = scores
    else:
        log.open(folder / "log.jsonl")

        def keep_best(evaluation):
            card = model_card(task, config, pretrained, precision, evaluation)
            save_model(folder / "model", engine.get_weights(), pretrained, task=task, tokenizer=tokenizer, card=card)

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
        )
        log.close()
        results.update(training_results(result, scaler, task))
        if result.best != len(result.evaluations) - 1:
            engine.set_weights(read_pretrained(folder / "model", "best epoch").tensors)

    written = []
    for name in task.split_names("test"):
        if name in splits:
            logits = predict_logits(
                engine, splits[name].features, batch_size=config.dev_batch_size, batching=batching, description=name
            )
            written.append(write_submission(folder / "predictions", task, name, logits))
    results.update(
        predictions=[str(path.relative_to(folder)) for path in written],
        peak_memory_mib=round(engine.peak_memory() / 2**20),
        wall_seconds=round(time.perf_counter() - start, 3),
    )
    write_json(folder / "results.json", results)
    for line in result_lines(results):
        log.say(line)
    for path in [*written, *([] if plan is None else [folder / "model"]), folder / "results.json"]:
        log.say(f"wrote {path}")


def main(argv=None):
    try:
        run(parse(argv, __doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: stopped by the keyboard; model/ in the run's folder holds the best epoch so far", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
