"""Published sets of hyperparameters, by task: what --recipe stands for. Flags that are given win over a recipe's.

A recipe holds only what its source states; where the source gives a grid, the choice from it is said. Knows no data.
"""

from dataclasses import dataclass, field

from bert.tasks import known_task


@dataclass(frozen=True)
class Recipe:
    """Flag values for every task, and those that differ for some."""

    source: str
    values: dict
    by_task: dict = field(default_factory=dict)


RECIPES = {
    "devlin": Recipe(
        "arXiv 1810.04805, A.3 (rate from its grid 5e-5 to 2e-5: that of the MRPC example in google-research/bert), "
        "optimizer without bias correction",
        {"batch_size": 32, "epochs": 3, "lr": 2e-5, "max_len": 128, "warmup_ratio": 0.1, "weight_decay": 0.01}
        | {"epsilon": 1e-6, "max_grad_norm": 1.0, "optimizer": "bertadam"},
    ),
    "gluonnlp": Recipe(
        "GluonNLP v0.10, scripts/bert/index.rst and its logs; for tasks without a log the script's own defaults",
        {"batch_size": 32, "epochs": 3, "lr": 3e-5, "max_len": 128, "warmup_ratio": 0.1, "weight_decay": 0.01}
        | {"epsilon": 1e-6, "max_grad_norm": 1.0, "optimizer": "bertadam"},
        {
            **{task: {"lr": 2e-5, "epochs": 5} for task in ("SST-2", "MRPC", "STS-B", "QQP", "RTE")},
            "CoLA": {"lr": 2e-5, "epochs": 10},
            "MNLI": {"lr": 2e-5, "epochs": 4, "batch_size": 48},
            "XNLI": {"lr": 2e-5, "epochs": 4},
        },
    ),
    "mosbach": Recipe(
        "arXiv 2006.04884 (stable on small tasks: bias correction, 20 epochs)",
        {"batch_size": 16, "epochs": 20, "lr": 2e-5, "max_len": 128, "warmup_ratio": 0.1, "weight_decay": 0.01}
        | {"epsilon": 1e-6, "max_grad_norm": 1.0, "optimizer": "adamw"},
    ),
    "minilm": Recipe(
        "arXiv 2002.10957, appendix B, and microsoft/unilm (rate 3e-5 from its grid 2e-5 to 5e-5, 5 epochs from 3 to 5, "
        "10 for the small tasks from up to 10)",
        {"batch_size": 32, "epochs": 5, "lr": 3e-5, "max_len": 128, "warmup_ratio": 0.1, "weight_decay": 0.01}
        | {"optimizer": "adamw"},
        {task: {"lr": 1.5e-5, "epochs": 10} for task in ("CoLA", "RTE", "MRPC")},
    ),
}


def recipe_values(name, task_name):
    """Flag -> value of recipe `name` for a task, in any spelling; None stands for a person's own files."""
    recipe = RECIPES[name]
    return {**recipe.values, **recipe.by_task.get(task_name and known_task(task_name), {})}
