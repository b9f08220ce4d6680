"""The MXNet engine: GluonNLP's BERT and RoBERTa with mxnet.contrib.amp, behind the seam of bert.engines.

Imported only once gluon.py has found MXNet usable. One device; the loss scale is decided above the seam, and the
precision is fixed for the process because amp.init patches MXNet's operators for good.
"""

import math

import gluonnlp as nlp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp

from bert import InputError
from bert.architecture import check_weights, has_weight_decay, parameter_shapes
from bert.engines import Update, peak_resident_memory
from bert.numerics import guard_block
from bert.params_file import POSITIONS, TOKEN_TYPES, canonical_names

BETAS = (0.9, 0.999)
# Partial sums of this many squares: MXNet's float32 sums on the CPU run straight through, and over the 12 million
# elements of a word embedding they lose about 2 %.
NORM_BLOCK = 2**18

# GluonNLP's fused attention. AMP's stock lists let its second product run in float32 beside float16, and do not know
# it at all for bfloat16, where it has no kernel.
ATTENTION_PRODUCTS = [
    "_contrib_interleaved_matmul_selfatt_qk",
    "_contrib_interleaved_matmul_selfatt_valatt",
    "_contrib_interleaved_matmul_encdec_qk",
    "_contrib_interleaved_matmul_encdec_valatt",
]
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "approx_gelu", "relu": "relu"}

_process_dtype = None


def set_precision(dtype):
    """Patch MXNet's operators for `dtype`, before any model exists; InputError for a second dtype in one process."""
    global _process_dtype
    if _process_dtype not in (None, dtype):
        raise InputError(
            f"MXNet's precision is fixed for a process: it is {_process_dtype}, so {dtype} needs a process of its own"
        )
    if _process_dtype is None and dtype == "float16":
        widest = amp.lists.symbol_fp16.WIDEST_TYPE_CASTS
        widest[:] = [operator for operator in widest if operator not in ATTENTION_PRODUCTS]
        amp.init("float16", target_precision_ops=amp.lists.symbol_fp16.FP16_FUNCS + ATTENTION_PRODUCTS)
    elif _process_dtype is None and dtype == "bfloat16":
        amp.init("bfloat16", fp32_ops=amp.lists.symbol_bf16.FP32_FUNCS + ATTENTION_PRODUCTS)
    _process_dtype = dtype


class TokenType(gluon.HybridBlock):
    """Adds the row of token type 0 to every word: Hugging Face's RoBERTa has it, GluonNLP's has not."""

    def __init__(self, types, units):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(types, units))

    def hybrid_forward(self, F, words, weight):
        return F.broadcast_add(words, F.expand_dims(F.slice_axis(weight, axis=0, begin=0, end=1), axis=0))


def build_model(architecture, num_labels):
    """GluonNLP's classifier for an Architecture, not initialized; InputError where GluonNLP has no such model."""
    a = architecture
    if a.model_type == "distilbert":
        raise InputError("GluonNLP has no DistilBERT that loads these weights: use --engine pytorch")
    encoder = nlp.model.BERTEncoder(
        num_layers=a.num_hidden_layers,
        units=a.hidden_size,
        hidden_size=a.intermediate_size,
        max_length=a.max_length,
        num_heads=a.num_attention_heads,
        dropout=a.hidden_dropout,
        activation=ACTIVATIONS[a.hidden_act],
        layer_norm_eps=a.layer_norm_eps,
    )
    for cell in encoder.transformer_cells:  # GluonNLP has one rate for both dropouts
        cell.attention_cell.dropout_layer = gluon.nn.Dropout(a.attention_dropout)
    if a.model_type == "roberta":
        words = gluon.nn.HybridSequential(prefix="word_embed_")
        with words.name_scope():
            words.add(gluon.nn.Embedding(a.vocab_size, a.hidden_size), TokenType(a.type_vocab_size, a.hidden_size))
        bert = nlp.model.RoBERTaModel(encoder, units=a.hidden_size, word_embed=words, use_decoder=False)
        return nlp.model.RoBERTaClassifier(bert, num_classes=num_labels, dropout=a.classifier_dropout)
    bert = nlp.model.BERTModel(
        encoder,
        vocab_size=a.vocab_size,
        token_type_vocab_size=a.type_vocab_size,
        units=a.hidden_size,
        embed_size=a.hidden_size,
        use_decoder=False,
        use_classifier=False,
    )
    return nlp.model.BERTClassifier(bert, num_classes=num_labels, dropout=a.classifier_dropout)


def canonical_parameters(model):
    """Canonical name -> Gluon parameter."""
    parameters = model._collect_params_with_prefix()
    types = parameters.pop("roberta.word_embed.1.weight", None)  # of the block that is ours, not GluonNLP's
    named = {canonical: parameters[name] for name, canonical in canonical_names(parameters).items()}
    return named if types is None else {**named, TOKEN_TYPES: types}


class PolicyScale:
    """In the place of AMP's own loss scaler, which lags a step, has no floor and looks at every gradient a second time."""

    loss_scale = 1.0

    def has_overflow(self, parameters):
        """Asked by Trainer.update, which the engine calls only once it has found the gradients finite."""
        return False


class Loss:
    """A loss still on its way; float() waits for the device."""

    def __init__(self, array):
        self._array = array

    def __float__(self):
        return float(self._array.asscalar())


class GluonEngine:
    """bert.engines.Engine on MXNet.

    Dropout is seeded anew for every micro-batch from (seed, number of the micro-batch), because MXNet can seed its
    random state but not save it; on the CPU a resumed run so draws what an unbroken one would have. cuDNN's dropout
    on a GPU keeps a state of its own that MXNet does not reseed.

    `range_changes` lists the constants that the range guard truncated (bert.numerics.Change).
    """

    name = "mxnet"

    def __init__(self, architecture, num_labels, *, dtype, gpu, seed, optimizer, epsilon, weight_decay, device):
        set_precision(dtype)
        self.device = device
        self._context = mx.cpu() if gpu is None else mx.gpu(gpu)
        self._regression = num_labels == 1
        self._takes_types = architecture.model_type == "bert"
        self._shapes = parameter_shapes(architecture, num_labels)
        self._epsilon, self._weight_decay, self._corrects_bias = epsilon, weight_decay, optimizer == "adamw"
        self._seed = seed
        self._drops = bool(architecture.hidden_dropout or architecture.attention_dropout or architecture.classifier_dropout)
        self._dropouts = 0  # micro-batches with dropout so far
        self._updates = 0  # applied so far
        self._gradients = []  # of the last micro-batch, once the update has one
        self._earlier_gradients = []  # the sum over the update's micro-batches before it, once it has two

        mx.random.seed(seed)
        self._model = build_model(architecture, num_labels)
        self._parameters = canonical_parameters(self._model)
        # RoBERTa's table begins with rows that are never looked up; GluonNLP's leaves them out.
        self._unused_positions = np.zeros((architecture.position_offset, architecture.hidden_size), np.float32)
        for name, parameter in self._parameters.items():
            rows, *columns = self._shapes[name]
            parameter.shape = (rows - len(self._unused_positions) if name == POSITIONS else rows, *columns)
            parameter.wd_mult = float(has_weight_decay(name))
        self._model.initialize(mx.init.Normal(architecture.initializer_range), ctx=self._context)
        self._model.hybridize(static_alloc=True)
        self._trainer = gluon.Trainer(
            list(self._parameters.values()), nlp.optimizer.BERTAdam(beta1=BETAS[0], beta2=BETAS[1]), update_on_kvstore=False
        )
        self._prepare_amp(dtype)

    def _prepare_amp(self, dtype):
        self.range_changes = []
        if dtype != "float32":
            amp.init_trainer(self._trainer)
            example = np.zeros((1, 1), np.int32)
            self.range_changes = guard_block(self._model, dtype, *self._inputs(example, example, np.ones(1)))
        # What init_trainer sets, in every precision, so that one code path scales and unscales.
        self._trainer._amp_loss_scaler = self._scale = PolicyScale()
        self._trainer._amp_original_scale = 1.0

    # ------------------------------------------------------------------------------------------ training

    def forward_backward(self, batch, *, loss_scale, weight):
        self._reseed()
        self._put_gradients_by()
        self._scale.loss_scale = loss_scale
        labels = mx.nd.array(batch.label_ids, ctx=self._context, dtype="float32")
        with autograd.record():
            loss = self._loss(self._logits(batch), labels)
            with amp.scale_loss(loss * weight, self._trainer) as scaled:
                scaled.backward()
        self._gradients = [parameter.grad() for parameter in self._parameters.values()]
        return Loss(loss)

    def _put_gradients_by(self):
        """Before a backward pass overwrites them. MXNet's own grad_req "add" loses every gradient that passes a cast
        between float32 and bfloat16 on the CPU, and keeps an overflow's inf."""
        if self._earlier_gradients:
            _add(self._gradients, to=self._earlier_gradients)
        else:
            self._earlier_gradients = [gradient.copy() for gradient in self._gradients]

    def apply_gradients(self, *, learning_rate, max_grad_norm, loss_scale):
        """One host wait, for the norm. AMP's trainer multiplies the loss scale out again as it reads each gradient, and
        the clip goes along, so no pass over the gradients is spent on either."""
        _add(self._earlier_gradients, to=self._gradients)
        norm = float(_norm(self._gradients).asscalar()) / loss_scale
        if math.isfinite(norm):
            self._updates += 1
            self._set_hyperparameters(learning_rate)
            # Trainer.update divides every gradient by its argument, after AMP's unscaling.
            self._trainer.update(max(1.0, norm / max_grad_norm) if max_grad_norm else 1.0)
        self._gradients, self._earlier_gradients = [], []
        return Update(norm)

    def _set_hyperparameters(self, learning_rate):
        """BERTAdam computes w -= rate * (m / (sqrt(v) + epsilon) + decay * w), without bias correction.

        Corrected (Kingma and Ba 2015, end of section 2), with c1 = 1 - beta1**t and c2 = 1 - beta2**t: the step
        m/c1 / (sqrt(v/c2) + epsilon) is sqrt(c2)/c1 times m / (sqrt(v) + epsilon * sqrt(c2)); the decay stays rate * w.
        """
        optimizer = self._trainer.optimizer
        first, second = (1 - beta**self._updates if self._corrects_bias else 1.0 for beta in BETAS)
        correction = math.sqrt(second) / first
        optimizer.set_learning_rate(learning_rate * correction)
        optimizer.epsilon = self._epsilon * math.sqrt(second)
        optimizer.wd = self._weight_decay / correction

    def _loss(self, logits, labels):
        """Mean over the batch, in float32."""
        if self._regression:
            return mx.nd.square(logits.reshape(-1) - labels).mean()
        return -mx.nd.pick(mx.nd.log_softmax(logits), labels).mean()

    def _reseed(self):
        if self._drops:
            state = np.random.SeedSequence([self._seed, self._dropouts]).generate_state(1)
            mx.random.seed(int(state[0] >> 1), ctx=self._context)  # 31 bits: it takes a C int
            self._dropouts += 1

    def finish(self):
        mx.nd.waitall()

    # ---------------------------------------------------------------------------------------- prediction

    def predict(self, batch):
        return self._logits(batch).asnumpy()

    def _logits(self, batch):
        """(batch, num_labels); float32 on the device, as NumPy has no bfloat16."""
        inputs = self._inputs(batch.input_ids, batch.token_type_ids, batch.valid_length)
        return mx.nd.amp_cast(self._model(*inputs), dtype="float32")

    def _inputs(self, input_ids, token_type_ids, valid_length):
        ids, types = (mx.nd.array(array, ctx=self._context, dtype="int32") for array in (input_ids, token_type_ids))
        length = mx.nd.array(valid_length, ctx=self._context, dtype="float32")
        return (ids, types, length) if self._takes_types else (ids, length)

    # --------------------------------------------------------------------------------- weights and state

    def get_weights(self, *, copy=True):
        weights = {name: self._parameters[name].data().asnumpy() for name in self._shapes}
        weights[POSITIONS] = np.concatenate([self._unused_positions, weights[POSITIONS]])
        return weights

    def set_weights(self, weights):
        check_weights(weights, self._shapes)
        offset = len(self._unused_positions)
        self._unused_positions = np.array(weights[POSITIONS][:offset], np.float32)
        for name, parameter in self._parameters.items():
            parameter.set_data(mx.nd.array(weights[name][offset:] if name == POSITIONS else weights[name], dtype="float32"))

    def state_dict(self, *, copy=True):
        """Moments as "mean/<name>" and "variance/<name>" once there are any, and what the dropout's seeds follow from."""
        states = self._trainer._updaters[0].states
        moments = {
            f"{moment}/{name}": array.asnumpy()
            for number, name in enumerate(self._parameters)
            if number in states
            for moment, array in zip(("mean", "variance"), states[number])
        }
        counters = {"updates": self._updates, "dropouts": self._dropouts, "seed": self._seed}
        return {**moments, **{name: np.array(value, np.int64) for name, value in counters.items()}}

    def load_state_dict(self, state):
        self._updates, self._dropouts, self._seed = (int(state[name]) for name in ("updates", "dropouts", "seed"))
        updater = self._trainer._updaters[0]
        for number, name in enumerate(self._parameters):
            if f"mean/{name}" in state:
                updater.states[number] = tuple(
                    mx.nd.array(state[f"{moment}/{name}"], ctx=self._context) for moment in ("mean", "variance")
                )
                updater.states_synced[number] = True
            else:
                updater.states.pop(number, None)  # MXNet makes zeros at the first update

    def peak_memory(self):
        """Peak resident size on the CPU; on a GPU what is in use now: MXNet's pool keeps what it once took."""
        if self._context.device_type == "gpu":
            free, total = mx.context.gpu_memory_info(self._context.device_id)
            return total - free
        return peak_resident_memory()


def _add(arrays, *, to):
    for array, total in zip(arrays, to):
        total += array


def _norm(gradients):
    """Global L2 norm, shape (1,), from sums of squares over blocks of NORM_BLOCK elements."""
    blocks = []
    for gradient in gradients:
        flat = gradient.reshape(-1)
        blocks += [flat[start : start + NORM_BLOCK] for start in range(0, flat.size, NORM_BLOCK)]
    return mx.nd.add_n(*(mx.nd.dot(block, block) for block in blocks)).sqrt()
