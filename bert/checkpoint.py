"""The whole state of a run on disk: written at update boundaries, verified when read, never lost while it is replaced.

One safetensors file per checkpoint, its numbers as JSON in the metadata, its sha256 in its name. Knows no loop and no
framework: an engine's arrays are opaque here.
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from bert import InputError
from bert.files import sync, why_not_written
from bert.training import Result
from bert.weights import file_digest

KEPT = 2  # the newest, and one before it should the newest be damaged


class Checkpoints:
    """Saves and restores engine, loss scaler, log and Result together, as they are between two updates."""

    def __init__(self, folder, *, engine, scaler, log):
        self.folder = Path(folder)
        self.engine, self.scaler, self.log = engine, scaler, log
        self._saved = None  # position of the newest checkpoint

    def save(self, result):
        """Write a checkpoint and drop the oldest. A disk that does not take it costs one warning: the next save tries anew.

        Nothing is written where the newest checkpoint is of this very position, or where the run is diverging.
        """
        # The number of evaluations tells the checkpoint before an epoch's evaluation from the one after.
        position = f"step-{result.updates:08d}-{len(result.evaluations):04d}"
        if position == self._saved:
            return
        arrays = {f"weights/{name}": array for name, array in self.engine.get_weights(copy=False).items()}
        arrays.update({f"engine/{name}": array for name, array in self.engine.state_dict(copy=False).items()})
        if (self.scaler.bad_updates and not self.scaler.dynamic) or not all(map(_is_finite, arrays.values())):
            self.log.say(f"WARNING: no checkpoint at step {result.updates}: gradients or weights are not finite")
            return
        state = {"result": asdict(result), "scaler": self.scaler.state_dict(), "log_bytes": self.log.sync()}
        try:
            self._write(position, arrays, json.dumps(state))
        except (OSError, SafetensorError) as error:
            self.log.say(
                f"WARNING: no checkpoint at step {result.updates}: {why_not_written(error)}; "
                "training goes on, the checkpoint before stays"
            )
        else:
            self._saved = position

    def restore(self):
        """(Result, bytes of log.jsonl) of the newest whole checkpoint, once engine and scaler are in its state.

        None where there is no checkpoint; a damaged one is reported and passed over; InputError where all are damaged.
        """
        paths, damaged = self.paths(), []
        for path in paths:
            if not _is_whole(path):
                self.log.say(f"WARNING: {path}: damaged (its sha256 is not that in its name); the one before it is used")
                damaged.append(path)
                continue
            try:
                with safe_open(path, framework="numpy") as file:
                    state = json.loads(file.metadata()["state"])
                arrays = load_file(path)
                self.engine.set_weights(_below("weights/", arrays))
                self.engine.load_state_dict(_below("engine/", arrays))
                self.scaler.load_state_dict(state["scaler"])
                result, log_bytes = Result(**state["result"]), state["log_bytes"]
            except (KeyError, TypeError) as error:
                raise InputError(f"{path}: of another version of this program: {error}") from None
            for other in damaged:  # lest they be counted among those to keep
                try:
                    other.unlink(missing_ok=True)
                except OSError:
                    pass  # what cannot be deleted cannot be in the way of a save either: names are never used twice
            self._saved = path.stem.rpartition("-")[0]
            return result, log_bytes
        if paths:
            raise InputError(f"{self.folder}: no checkpoint in it is whole; --overwrite begins the run anew")
        return None

    def paths(self):
        """Checkpoints, the newest first."""
        return sorted((path for path in self.folder.glob("step-*.safetensors") if path.is_file()), reverse=True)

    def remove(self):
        """For a finished run, which needs none."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, position, arrays, state):
        aside = self.folder / "partial"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            aside.mkdir(parents=True)
            path = aside / "state.safetensors"
            save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path, {"state": state})
            sync(path)
            final = self.folder / f"{position}-{file_digest(path)}.safetensors"
            os.replace(path, final)
            sync(self.folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        for number, path in enumerate(self.paths()):
            if number >= KEPT or (path != final and path.name.startswith(position)):
                path.unlink(missing_ok=True)


def _is_whole(path):
    try:
        return file_digest(path) == path.stem.rpartition("-")[2]
    except OSError:  # the disk does not give it back
        return False


def _is_finite(array):
    return not np.issubdtype(array.dtype, np.floating) or bool(np.isfinite(array).all())


def _below(prefix, arrays):
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
