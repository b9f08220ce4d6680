"""In a process of its own: a run on MXNet undisturbed, one that is cut in mid-epoch, and that one resumed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import finetune_classifier
from bert.checkpoint import Checkpoints

folder, flags = Path(sys.argv[1]), sys.argv[2:]


class Killed(BaseException):
    pass


def killed(self, result):
    save(self, result)
    if result.updates == 9:
        raise Killed


code = finetune_classifier.main([*flags, "--output_dir", str(folder / "whole")])
if code:
    sys.exit(code)
save, Checkpoints.save = Checkpoints.save, killed
try:
    finetune_classifier.main([*flags, "--output_dir", str(folder / "cut"), "--save_steps", "3"])
except Killed:
    Checkpoints.save = save
    sys.exit(finetune_classifier.main([*flags, "--output_dir", str(folder / "cut"), "--save_steps", "3", "--resume"]))
sys.exit("the run was not cut")
