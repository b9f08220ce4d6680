#!/usr/bin/env python3
"""Peer baseline: the Hugging Face Trainer's predict on a file in SST-2's layout, at its best CPU flags.

    python benchmarks/hf_predict.py --file data/glue/SST-2/dev.tsv --model runs/sst2/model --bf16

Rows are tokenized in one call and sorted by length, so that batches hold next to no padding; --bf16 casts the whole model
(bf16_full_eval). Prints one JSON line. Needs: torch transformers accelerate.
"""

import argparse
import json
import tempfile
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", required=True, help="TSV with a header; columns sentence and label (0 or 1)")
    parser.add_argument("--model", required=True, help="fine-tuned model in Hugging Face layout")
    parser.add_argument("--batch_size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--max_len", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 weights and products")
    args = parser.parse_args()

    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model)
    with open(args.file, encoding="utf-8", newline="") as file:
        rows = [line.rstrip("\r\n").split("\t") for line in file][1:]
    encoded = tokenizer([text for text, _ in rows], truncation=True, max_length=args.max_len)
    items = [
        {"input_ids": ids, "attention_mask": encoded["attention_mask"][row], "labels": int(rows[row][1])}
        for row, ids in enumerate(encoded["input_ids"])
    ]
    items.sort(key=lambda item: -len(item["input_ids"]))  # longest first: memory runs out at once or never
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_eval_batch_size=args.batch_size,
            bf16_full_eval=args.bf16,
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    start = time.perf_counter()
    prediction = trainer.predict(items)
    seconds = time.perf_counter() - start
    tokens = sum(len(item["input_ids"]) for item in items)
    print(
        json.dumps(
            {
                "peer": "hf_predict",
                "rows": len(items),
                "predict_seconds": round(seconds, 2),
                "real_tokens": tokens,
                "real_tokens_per_second": round(tokens / seconds, 1),
                "accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean()),
            }
        )
    )


if __name__ == "__main__":
    main()
