"""The PyTorch engine: BERT with fused AdamW on a CPU or a CUDA (or ROCm) GPU.

Master weights, moments, norms and losses are float32 whatever the products run in. Knows no schedule, no data order and no
policy: it is told the learning rate and the loss scale of every update.
"""

import ctypes
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F

from bert import InputError
from bert.architecture import check_weights, has_weight_decay, parameter_shapes
from bert.engines import Update, kernels, peak_resident_memory
from bert.engines.pytorch_model import WORD_EMBEDDINGS, Dropout, Tokens, Weights, classify
from bert.precision import DTYPES, Capability

# A step counter this high makes both of Adam's bias corrections exactly 1 in float32: AdamW becomes BERTAdam.
_CORRECTIONS_DONE = 2.0**20


def capabilities(gpu):
    """dtype -> Capability of the CPU (gpu None) or of GPU number `gpu`."""
    if gpu is None:
        features = torch.cpu.get_capabilities()
        fast = {
            "float32": True,
            "float16": features.get("amx_fp16"),
            "bfloat16": features.get("amx_bf16") or features.get("avx512_bf16"),
        }
        return {dtype: Capability(True, "" if fast[dtype] else "no faster than float32 on this CPU") for dtype in DTYPES}
    count = torch.cuda.device_count()
    if gpu >= count:
        if count:
            reason = f"PyTorch sees {count} GPU(s), numbered from 0; --gpu {gpu} is not one of them"
        elif torch.version.cuda or torch.version.hip:
            reason = "PyTorch sees no GPU; leave out --gpu to use the CPU, or check the driver"
        else:
            reason = "this PyTorch is a CPU build; install a CUDA build of torch, or leave out --gpu"
        return dict.fromkeys(DTYPES, Capability(False, reason))
    major, minor = torch.cuda.get_device_capability(gpu)
    tensor_cores = torch.version.hip or major >= 7
    bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {
        "float32": Capability(True),
        "float16": Capability(
            True, "" if tensor_cores else f"compute capability {major}.{minor} has no tensor cores: no faster than float32"
        ),
        "bfloat16": Capability(bfloat16, "" if bfloat16 else f"compute capability {major}.{minor} has no bfloat16"),
    }


def create(architecture, num_labels, *, dtype, gpu, **settings):
    """The engine; see bert.engines.Engine for the arguments."""
    device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
    return PyTorchEngine(architecture, num_labels, dtype=getattr(torch, dtype), device=device, **settings)


class PyTorchEngine:
    """bert.engines.Engine on PyTorch; `dtype` and `device` are torch's."""

    name = "pytorch"
    range_changes = ()  # the model keeps its constants in float32

    def __init__(
        self,
        architecture,
        num_labels,
        *,
        dtype,
        device,
        seed,
        optimizer,
        epsilon,
        weight_decay,
        checkpoint_activations=False,
    ):
        self.architecture = architecture
        self.dtype = dtype
        self._device = device
        self._checkpoint_activations = checkpoint_activations
        if device.type == "cpu":
            _keep_freed_memory()
            slow = "" if kernels.available(device) else f", without the fused kernels ({kernels.why_not()})"
            self.device = f"cpu, {torch.get_num_threads()} threads{slow}"
        else:
            self.device = f"{device} {torch.cuda.get_device_name(device)}"
        self.shapes = parameter_shapes(architecture, num_labels)
        self.regression = num_labels == 1
        self.model_weights = Weights(self.shapes, dtype=dtype, device=device)
        self.weights = self.model_weights.masters
        self._adam = {"beta1": 0.9, "beta2": 0.999, "eps": epsilon}
        self._groups = [  # (weight decay, names)
            (weight_decay, [name for name in self.weights if has_weight_decay(name)]),
            (0.0, [name for name in self.weights if not has_weight_decay(name)]),
        ]
        start = _CORRECTIONS_DONE if optimizer == "bertadam" else 0.0
        self._moments = {
            name: {
                "step": torch.tensor(start, device=device),
                "exp_avg": torch.zeros_like(weight, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(weight, requires_grad=False),
            }
            for name, weight in self.weights.items()
        }
        self._words = None  # where there are kernels: the word embeddings, whose rows may lag behind their updates
        if kernels.available(device):
            moments = self._moments[WORD_EMBEDDINGS]
            self._words = kernels.TableAdamW(self.weights[WORD_EMBEDDINGS], moments["exp_avg"], moments["exp_avg_sq"])
        self.dropout = Dropout(seed)
        torch.manual_seed(seed)  # for dropout on a GPU

    def forward_backward(self, batch, *, loss_scale, weight):
        logits = self._logits(batch, training=True)
        labels = self._tensor(batch.label_ids)
        if self.regression:
            loss = F.mse_loss(logits[:, 0], labels.float())
        else:
            loss = F.cross_entropy(logits, labels.long())
        (loss * (loss_scale * weight)).backward()
        return loss.detach()

    def apply_gradients(self, *, learning_rate, max_grad_norm, loss_scale):
        apply = self._apply_with_torch if self._words is None else self._apply_with_kernels
        norm = apply(self.model_weights.take_gradients(), learning_rate, max_grad_norm, loss_scale)
        return Update(grad_norm=norm)

    def _apply_with_torch(self, gradients, learning_rate, max_grad_norm, loss_scale):
        words = gradients[WORD_EMBEDDINGS]
        gradients[WORD_EMBEDDINGS] = words.to_dense() if words.is_sparse else words
        for name, gradient in gradients.items():  # in place: a GPU need not hold all of them in both types
            gradients[name] = gradient.float()
        norm = torch.stack(torch._foreach_norm(list(gradients.values()))).norm() / loss_scale
        clip = torch.clamp(max_grad_norm / norm, max=1.0) if max_grad_norm else torch.ones_like(norm)
        # torch.optim.AdamW's fused kernel divides the gradients by grad_scale and does nothing at all where found_inf is 1.
        # Both stay on the device, so that an update whose verdict nobody asks for costs no wait. (The class around the
        # kernel takes a second to import what is not used here.)
        verdict = {"grad_scale": loss_scale / clip, "found_inf": (~torch.isfinite(norm)).float()}
        with torch.no_grad():
            for weight_decay, names in self._groups:
                moments = [self._moments[name] for name in names]
                steps, exp_avgs, exp_avg_sqs = ([state[kind] for state in moments] for kind in moments[0])
                torch._foreach_add_(steps, 1 - verdict["found_inf"])
                torch._fused_adamw_(
                    [self.weights[name] for name in names],
                    [gradients[name] for name in names],
                    exp_avgs,
                    exp_avg_sqs,
                    [],
                    steps,
                    lr=learning_rate,
                    weight_decay=weight_decay,
                    amsgrad=False,
                    maximize=False,
                    **self._adam,
                    **verdict,
                )
        self.model_weights.changed()
        return norm

    def _apply_with_kernels(self, gradients, learning_rate, max_grad_norm, loss_scale):
        """The same on a CPU: the word embeddings' gradient stays the few rows that occur, of a table that is most of a small
        model, and the copies for the products are rounded in passing."""
        words = gradients[WORD_EMBEDDINGS]
        rows, places = torch.unique(words._indices()[0], return_inverse=True)
        gradients[WORD_EMBEDDINGS] = torch.zeros(len(rows), words.shape[1]).index_add_(0, places, words._values())
        norm = math.sqrt(sum(map(kernels.sum_squares, gradients.values()))) / loss_scale
        if not math.isfinite(norm):
            return norm
        clip = min(1.0, max_grad_norm / norm) if max_grad_norm and norm else 1.0
        beta1, beta2 = self._adam["beta1"], self._adam["beta2"]
        for weight_decay, names in self._groups:
            torch._foreach_add_([self._moments[name]["step"] for name in names], 1)
            step = float(self._moments[names[0]]["step"])
            adam = kernels.Adam(
                scale=clip / loss_scale,
                decay=1 - learning_rate * weight_decay,
                beta2=beta2,
                rest1=1 - beta1,
                rest2=1 - beta2,
                step_size=learning_rate / (1 - beta1**step),
                correction=(1 - beta2**step) ** -0.5,
                epsilon=self._adam["eps"],
            )
            for name in names:
                if name == WORD_EMBEDDINGS:
                    self._words.update(adam, rows, gradients[name])
                else:
                    moments = self._moments[name]["exp_avg"], self._moments[name]["exp_avg_sq"]
                    low = self.model_weights.low(name)
                    kernels.adamw(adam, self.weights[name], gradients[name].contiguous(), *moments, low)
        return norm

    def finish(self):
        self._wake_words()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def predict(self, batch):
        with torch.inference_mode():
            return self._logits(batch, training=False).cpu().numpy()

    def get_weights(self, *, copy=True):
        self._wake_words()
        return {name: _array(weight, copy) for name, weight in self.weights.items()}

    def set_weights(self, weights):
        check_weights(weights, self.shapes)
        self._wake_words()
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(torch.from_numpy(np.asarray(weights[name], np.float32)))
            self.model_weights.changed()

    def state_dict(self, *, copy=True):
        self._wake_words()
        state = {
            f"{kind}/{name}": _array(tensor, copy)
            for name, moments in self._moments.items()
            for kind, tensor in moments.items()
        }
        state["random/cpu"] = self.dropout.random.state["state"]["state"]
        if self._device.type == "cuda":
            state["random/cuda"] = torch.cuda.get_rng_state(self._device).numpy()
        return state

    def load_state_dict(self, state):
        self._wake_words()
        for name, moments in self._moments.items():
            for kind, tensor in moments.items():
                if f"{kind}/{name}" not in state:
                    raise InputError(f"training state: {kind} of {name} is missing")
                tensor.copy_(torch.from_numpy(np.asarray(state[f"{kind}/{name}"])))
        if self._words is not None:
            self._words.moments_changed()
        random = self.dropout.random
        random.state = {**random.state, "state": {"state": np.asarray(state["random/cpu"], np.uint64)}}
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(torch.from_numpy(state["random/cuda"]), self._device)

    def _wake_words(self):
        if self._words is not None:
            self._words.wake_all()

    def peak_memory(self):
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return peak_resident_memory()

    def _logits(self, batch, *, training):
        tokens = self._tokens(batch)
        if self._words is not None:
            self._words.wake(torch.unique(tokens.input_ids))
        logits = classify(
            self.model_weights,
            self.architecture,
            tokens,
            dropout=self.dropout if training else None,
            checkpoint_activations=self._checkpoint_activations and training,
        )
        return logits[: len(batch)]

    def _tokens(self, batch):
        """The batch without its padding. A row of copies, whose logits nobody reads, rounds the number of tokens up."""
        width = np.arange(batch.input_ids.shape[1])
        real = width < batch.valid_length[:, None]
        columns = np.stack([batch.input_ids[real], batch.token_type_ids[real], np.broadcast_to(width, real.shape)[real]])
        lengths, filler = batch.valid_length, _round_up(batch.tokens) - batch.tokens
        if filler:
            columns = np.concatenate([columns, columns[:, np.arange(filler) % lengths[0]]], axis=1)
            lengths = np.append(lengths, filler)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        columns, offsets = (self._tensor(array.astype(np.int64)) for array in (columns, offsets))
        return Tokens(*columns.unbind(), offsets, int(lengths.max()))

    def _tensor(self, array):
        tensor = torch.from_numpy(array)
        # A copy from pinned memory runs beside the kernels before it; from ordinary memory the device would wait.
        return tensor if self._device.type == "cpu" else tensor.pin_memory().to(self._device, non_blocking=True)


def _round_up(tokens):
    """To a multiple of 16, which fills the tiles of AMX and tensor cores, and of a sixteenth of the power of 2 below.

    For every other number of tokens oneDNN makes code for some 15 products, half a MiB and a millisecond each.
    """
    step = max(16, 2 ** (tokens.bit_length() - 1) // 16)
    return -(-tokens // step) * step


def _array(tensor, copy):
    array = tensor.detach().cpu().numpy()
    return array.copy() if copy and tensor.device.type == "cpu" else array


def _keep_freed_memory():
    """Tell glibc's malloc to keep what is freed: the buffers of one update serve the next.

    By default large blocks are mapped afresh each time and every page of them faults again, about a fifth of an update.
    The process then holds its peak until it ends, which is the peak it would have had anyway.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        trim_threshold, top_pad, mmap_max = -1, -2, -4  # malloc.h
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(top_pad, 64 * 2**20)
