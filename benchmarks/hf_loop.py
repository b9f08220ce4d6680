#!/usr/bin/env python3
"""Hugging Face's model in this program's loop: tells whether a difference to the Trainer is the model's or the loop's.

    python benchmarks/hf_loop.py --task_name MRPC --data_dir data/glue --seed 0

Model, dropout, autocast in bfloat16 and fused AdamW are transformers' and torch's own; rows, batches, their order and the
learning rate are this program's. The recipe is that of the README's comparison. Prints one JSON line.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, set_seed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bert.architecture import has_weight_decay
from bert.data import evaluation_order, load_splits, make_batch, training_order
from bert.metrics import compute_metrics
from bert.schedule import learning_rate
from bert.tasks import find_task
from bert.tokenization import load_tokenizer
from bert.weights import load_pretrained

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--task_name", default="MRPC")
parser.add_argument("--data_dir", default="data/glue")
parser.add_argument("--bert_model", default="minilm_6_384_12")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--lr", type=float, default=5e-5)
parser.add_argument("--seed", type=int, default=0)


def main(args):
    pretrained = load_pretrained(bert_model=args.bert_model)
    tokenizer = load_tokenizer(pretrained.folder, pretrained.architecture)
    task = find_task(args.task_name)
    splits, _ = load_splits(task, args.data_dir, train=True, tokenizer=tokenizer, max_len=128)
    features = splits["train"].features
    padding = {"pad_id": pretrained.architecture.pad_token_id, "round_to": 1, "max_len": 128}

    set_seed(args.seed)
    model = AutoModelForSequenceClassification.from_pretrained(pretrained.folder, num_labels=task.num_labels).train()
    groups = [
        {"params": [p for name, p in model.named_parameters() if has_weight_decay(name)], "weight_decay": 0.01},
        {"params": [p for name, p in model.named_parameters() if not has_weight_decay(name)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, eps=1e-8, fused=True)
    total = args.epochs * -(-len(features) // args.batch_size)
    step = 0
    for epoch in range(args.epochs):
        for rows in training_order(features.lengths, batch_size=args.batch_size, seed=args.seed, epoch=epoch):
            batch = make_batch(features, rows, **padding)
            labels = torch.from_numpy(batch.label_ids)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(**inputs(batch), labels=labels if task.regression else labels.long()).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, peak=args.lr, total_steps=total, warmup_ratio=0.1)
            optimizer.step()
            optimizer.zero_grad()
            step += 1

    model.eval()
    scores = {}
    for name in task.split_names("dev"):
        features = splits[name].features
        logits = np.empty((len(features), task.num_labels), np.float32)
        for rows in evaluation_order(features.lengths, batch_size=64):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                logits[rows] = model(**inputs(make_batch(features, rows, **padding))).logits.float().numpy()
        scores[name] = compute_metrics(task.metrics, logits, features.label_ids, regression=task.regression)[0]
    print(json.dumps({"task": task.name, "seed": args.seed, "updates": step, "scores": scores}))


def inputs(batch):
    """A Batch as the keyword arguments of transformers' BERT."""
    mask = np.arange(batch.input_ids.shape[1]) < batch.valid_length[:, None]
    arrays = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids, "attention_mask": mask}
    return {name: torch.from_numpy(array).long() for name, array in arrays.items()}


if __name__ == "__main__":
    main(parser.parse_args())
