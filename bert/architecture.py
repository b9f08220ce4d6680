"""The shape of a BERT classifier, read from a Hugging Face `config.json`, and the canonical names of its tensors.

Covers BERT, RoBERTa and DistilBERT. Canonical names are those of Hugging Face's BertForSequenceClassification for all
three; both engines build their model from an Architecture and speak these names. Knows no framework and no disk.
"""

from dataclasses import dataclass

from bert import InputError

# The dense layer between [CLS] and the classifier goes by other names outside BERT; here it is always the pooler.
HEAD = ("classifier.weight", "classifier.bias")
POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")


@dataclass(frozen=True)
class Architecture:
    """Sizes and constants of an encoder with its classification head."""

    model_type: str  # bert | roberta | distilbert
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int  # 0: the model has no token type embedding
    hidden_act: str = "gelu"  # gelu | gelu_tanh | relu
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    initializer_range: float = 0.02

    @property
    def position_offset(self):
        """Position id of the first token: RoBERTa numbers positions from behind its padding id, the others from 0."""
        return self.pad_token_id + 1 if self.model_type == "roberta" else 0

    @property
    def max_length(self):
        """The longest input in tokens that the position table covers."""
        return self.max_position_embeddings - self.position_offset

    @property
    def head_dropouts(self):
        """Dropout before and after the pooler's dense layer."""
        return (self.classifier_dropout if self.model_type == "roberta" else 0.0, self.classifier_dropout)

    @property
    def attention_output_dropout(self):
        """Dropout on what the attention block adds to the residual; DistilBERT has none there."""
        return 0.0 if self.model_type == "distilbert" else self.hidden_dropout

    @property
    def pooler_act(self):
        return "relu" if self.model_type == "distilbert" else "tanh"


# Hugging Face's key for each size, by model type; a missing one is an error that names it.
_KEYS = {
    "bert": {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
    },
    "distilbert": {
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_position_embeddings": "max_position_embeddings",
    },
}
_KEYS["roberta"] = _KEYS["bert"]
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def read_architecture(config, where="config.json"):
    """Architecture from a parsed Hugging Face `config.json`. Unknown keys are ignored; InputError for what is unusable."""
    if not isinstance(config, dict):
        raise InputError(f"{where}: expected a JSON object")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in _KEYS:
        raise InputError(f"{where}: model_type is {model_type!r}, expected one of {', '.join(_KEYS)}")

    def number(key, default, kind, low, high):
        value = config.get(key, default)
        value = default if value is None else value
        if value is None:
            raise InputError(f"{where}: {key} is missing")
        a_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not a_number or not low <= value <= high or value != kind(value):  # the range first: 10**400 has no float
            raise InputError(f"{where}: {key} is {value!r}, expected {kind.__name__} from {low:g} to {high:g}")
        return kind(value)

    # Bounds are far outside any published model; they keep a damaged file from asking for all memory.
    sizes = {name: number(key, None, int, 1, 2_000_000) for name, key in _KEYS[model_type].items()}
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise InputError(
            f"{where}: {sizes['hidden_size']} hidden units do not divide into {sizes['num_attention_heads']} attention heads"
        )
    if sizes["num_hidden_layers"] > 1000 or sizes["hidden_size"] > 65536 or sizes["intermediate_size"] > 524288:
        raise InputError(f"{where}: sizes out of range: {sizes}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(f"{where}: position_embedding_type is {config['position_embedding_type']!r}, expected 'absolute'")
    distil = model_type == "distilbert"
    activation = config.get("activation" if distil else "hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise InputError(f"{where}: activation is {activation!r}, expected one of {', '.join(_ACTIVATIONS)}")
    hidden_dropout = number("dropout" if distil else "hidden_dropout_prob", 0.1, float, 0, 1)
    pad_token_id = number("pad_token_id", 1 if model_type == "roberta" else 0, int, 0, sizes["vocab_size"] - 1)
    architecture = Architecture(
        model_type=model_type,
        **sizes,
        type_vocab_size=0 if distil else number("type_vocab_size", 2, int, 1, 1000),
        hidden_act=_ACTIVATIONS[activation],
        hidden_dropout=hidden_dropout,
        attention_dropout=number("attention_dropout" if distil else "attention_probs_dropout_prob", 0.1, float, 0, 1),
        classifier_dropout=number("seq_classif_dropout", 0.2, float, 0, 1)
        if distil
        else number("classifier_dropout", hidden_dropout, float, 0, 1),
        layer_norm_eps=number("layer_norm_eps", 1e-12, float, 0, 1),
        pad_token_id=pad_token_id,
        initializer_range=number("initializer_range", 0.02, float, 0, 10),
    )
    if architecture.max_length < 4:
        raise InputError(f"{where}: max_position_embeddings {architecture.max_position_embeddings} leaves no room for text")
    return architecture


def parameter_shapes(architecture, num_labels):
    """Canonical name -> shape of every tensor of the classifier, in a fixed order."""
    a, hidden = architecture, architecture.hidden_size
    shapes = {
        "bert.embeddings.word_embeddings.weight": (a.vocab_size, hidden),
        "bert.embeddings.position_embeddings.weight": (a.max_position_embeddings, hidden),
    }
    if a.type_vocab_size:
        shapes["bert.embeddings.token_type_embeddings.weight"] = (a.type_vocab_size, hidden)

    def layer_norm(name):
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)

    def dense(name, inputs, outputs):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    layer_norm("bert.embeddings.LayerNorm")
    for number in range(a.num_hidden_layers):
        layer = f"bert.encoder.layer.{number}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", hidden, hidden)
        dense(f"{layer}.attention.output.dense", hidden, hidden)
        layer_norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", hidden, a.intermediate_size)
        dense(f"{layer}.output.dense", a.intermediate_size, hidden)
        layer_norm(f"{layer}.output.LayerNorm")
    dense("bert.pooler.dense", hidden, hidden)
    dense("classifier", hidden, num_labels)
    return shapes


def has_weight_decay(name):
    """BERT's recipe: every matrix and embedding decays, biases and LayerNorm do not."""
    return not name.endswith(".bias") and "LayerNorm" not in name


def check_weights(weights, shapes):
    """InputError that names the first missing, unknown or wrongly shaped tensor of `weights` (name -> array)."""
    for name, shape in shapes.items():
        if name not in weights:
            raise InputError(f"weights: tensor {name} {shape} is missing")
        if tuple(weights[name].shape) != shape:
            raise InputError(f"weights: tensor {name} has shape {tuple(weights[name].shape)}, expected {shape}")
    for name in weights:
        if name not in shapes:
            raise InputError(f"weights: unknown tensor {name}")
