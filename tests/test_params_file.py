"""`.params` files: the reader against damage, both directions against MXNet, and GluonNLP's names against its models."""

import struct

import numpy as np
import pytest
from params_writer import gluon_name, to_gluon, write_params

from bert import InputError
from bert.architecture import Architecture, parameter_shapes
from bert.engines import gluon
from bert.params_file import canonical_names, from_gluon, read_params

usable = gluon.capabilities(None)["float32"]
needs_mxnet = pytest.mark.skipif(not usable.available, reason=usable.note)

TENSORS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5, -2.0], np.float16),
    "double": np.array([[1e300]], np.float64),
    "bytes": np.array([0, 255], np.uint8),
    "ints": np.array([-5, 7], np.int32),
    "longs": np.array([2**40], np.int64),
    "small": np.array([-3], np.int8),
}


def sizes(model_type, layers=2):
    roberta = model_type == "roberta"
    return Architecture(model_type, 30, 8, layers, 2, 16, 12, 1 if roberta else 2, pad_token_id=1 if roberta else 0)


def random_weights(architecture):
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in parameter_shapes(architecture, 3).items()}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.params"
    write_params(path, TENSORS)
    return path


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_round_trip(file):
    assert_equal(read_params(file), TENSORS)


@needs_mxnet
def test_mxnet_reads_what_is_written(file):
    import mxnet as mx

    assert_equal({name: array.asnumpy() for name, array in mx.nd.load(str(file)).items()}, TENSORS)


@needs_mxnet
@pytest.mark.parametrize("numpy_shapes", [False, True])  # True writes version 3 of the format
def test_what_mxnet_writes_is_read(tmp_path, numpy_shapes):
    import mxnet as mx

    path = str(tmp_path / "mxnet.params")
    with mx.util.np_shape(numpy_shapes):
        arrays = {name: mx.nd.array(array, dtype=array.dtype) for name, array in TENSORS.items()}
        if numpy_shapes:
            arrays["scalar"] = mx.nd.ones(())
        mx.nd.save(path, arrays)
    assert_equal(read_params(path), {**TENSORS, "scalar": np.ones((), np.float32)} if numpy_shapes else TENSORS)


@needs_mxnet
def test_bfloat16_is_widened(tmp_path):
    import mxnet as mx

    from bert.numerics import MXNET_BFLOAT16

    path = str(tmp_path / "bf16.params")
    mx.nd.save(path, {"w": mx.nd.amp_cast(mx.nd.array([1.0, -3.5, 1e30]), dtype=MXNET_BFLOAT16)})
    assert read_params(path)["w"] == pytest.approx([1.0, -3.5, 1e30], rel=2**-8)


def test_version_1(tmp_path):
    path = tmp_path / "old.params"
    array = struct.pack("<Ii2q", 0xF993FAC8, 2, 1, 2) + struct.pack("<iii2f", 1, 0, 0, 0.5, -1.0)
    path.write_bytes(struct.pack("<QQQ", 0x112, 0, 1) + array + struct.pack("<QQ", 1, 1) + b"w")
    assert read_params(path)["w"].tolist() == [[0.5, -1.0]]


def test_every_truncation_is_refused(file):
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(InputError, match="model.params: not a whole .params file"):
            read_params(file)
    file.write_bytes(content + b"x")
    with pytest.raises(InputError, match="1 bytes follow"):
        read_params(file)


def test_every_flipped_bit_is_refused_or_changes_only_values(file):
    content = file.read_bytes()
    for position in range(len(content)):
        for bit in (0, 7):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            file.write_bytes(damaged)
            try:
                tensors = read_params(file)
            except InputError as error:
                assert str(file) in str(error)
            else:
                assert sum(tensor.nbytes for tensor in tensors.values()) <= len(content) * 2  # bfloat16 doubles


@pytest.mark.parametrize(
    "offset, form, value, complaint",
    [
        (0, "Q", 0x113, "begins with 0x113"),
        (16, "Q", 2**60, "tensors cannot fit"),
        (24, "I", 7, "begins with 0x7"),
        (28, "i", 1, "storage type 1"),
        (32, "i", 2**30, "1073741824 dimensions"),
        (32, "i", -1, "-1 dimensions"),
        (36, "q", 2**62, "are left"),  # (2**62, 3) float32
        (36, "q", -1, "shape"),
        (60, "i", 99, "type number 99"),
    ],
)
def test_lies_about_sizes(file, offset, form, value, complaint):
    content = bytearray(file.read_bytes())
    struct.pack_into(f"<{form}", content, offset, value)
    file.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read_params(file)


def test_names_are_checked(tmp_path):
    path = tmp_path / "names.params"
    for names, complaint in [((b"w", b"w"), "same name"), ((b"w",), "2 tensors but 1 names"), ((b"w", b"\xff"), "UTF-8")]:
        array = struct.pack("<Iiiqiiif", 0xF993FAC9, 0, 1, 1, 1, 0, 0, 1.0)
        listed = b"".join(struct.pack("<Q", len(name)) + name for name in names)
        path.write_bytes(struct.pack("<QQQ", 0x112, 0, 2) + 2 * array + struct.pack("<Q", len(names)) + listed)
        with pytest.raises(InputError, match=complaint):
            read_params(path)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="none.params: cannot be read"):
        read_params(tmp_path / "none.params")


# ---------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_names_there_and_back(model_type):
    names = parameter_shapes(sizes(model_type, layers=12), 2)
    if model_type == "roberta":
        del names["bert.embeddings.token_type_embeddings.weight"]
    theirs = {gluon_name(name, model_type == "roberta"): name for name in names}
    assert len(theirs) == len(names)
    assert canonical_names(theirs) == theirs


@needs_mxnet
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_files_of_gluonnlp_classifiers(model_type, tmp_path):
    """What to_gluon writes, GluonNLP's own classifier loads; what it then saves is read back as the same weights."""
    import gluonnlp as nlp

    architecture = sizes(model_type)
    weights = random_weights(architecture)
    if model_type == "roberta":  # what GluonNLP's RoBERTa cannot keep apart
        weights["bert.embeddings.token_type_embeddings.weight"][:] = 0
        weights["bert.embeddings.position_embeddings.weight"][:2] = 0
    path = str(tmp_path / "classifier.params")
    write_params(path, to_gluon(weights, architecture))
    model = gluonnlp_classifier(architecture)
    nlp.utils.load_parameters(model, path)
    nlp.utils.save_parameters(model, path)
    found = from_gluon(read_params(path), architecture)
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array)


@needs_mxnet
def test_file_of_a_pretrained_gluonnlp_model(tmp_path):
    """BERTModel with both pretraining heads: those are left out, everything but the classifier is there."""
    import mxnet as mx

    architecture = sizes("bert")
    model = gluonnlp_bert(architecture, use_decoder=True, use_classifier=True)
    model.initialize()
    model(mx.nd.ones((1, 3)), mx.nd.zeros((1, 3)), mx.nd.array([3]), mx.nd.array([[1]]))
    path = str(tmp_path / "pretrained.params")
    model.save_parameters(path)
    found = from_gluon(read_params(path), architecture)
    expected = parameter_shapes(architecture, 2)
    del expected["classifier.weight"], expected["classifier.bias"]
    assert {name: array.shape for name, array in found.items()} == expected


def test_heads_saved_without_dropout():
    """GluonNLP leaves out a dropout of rate 0, and the blocks are numbered anew."""
    assert canonical_names(["classifier.0.weight"]) == {"classifier.0.weight": "classifier.weight"}
    assert canonical_names(["classifier.1.bias", "classifier.0.bias"]) == {
        "classifier.0.bias": "bert.pooler.dense.bias",
        "classifier.1.bias": "classifier.bias",
    }


def test_unknown_tensor_is_named():
    with pytest.raises(InputError, match="encoder.transformer_cells.0.extra.weight is not a tensor"):
        canonical_names(["encoder.transformer_cells.0.extra.weight"])


def gluonnlp_bert(a, **heads):
    import gluonnlp as nlp

    encoder = nlp.model.BERTEncoder(
        num_layers=a.num_hidden_layers,
        units=a.hidden_size,
        hidden_size=a.intermediate_size,
        max_length=a.max_length,
        num_heads=a.num_attention_heads,
    )
    common = {"vocab_size": a.vocab_size, "units": a.hidden_size, "embed_size": a.hidden_size}
    if a.model_type == "roberta":
        return nlp.model.RoBERTaModel(encoder, use_decoder=False, **common)
    return nlp.model.BERTModel(encoder, token_type_vocab_size=a.type_vocab_size, **common, **heads)


def gluonnlp_classifier(architecture):
    import gluonnlp as nlp

    if architecture.model_type == "roberta":
        return nlp.model.RoBERTaClassifier(gluonnlp_bert(architecture), num_classes=3, dropout=0.1)
    bert = gluonnlp_bert(architecture, use_decoder=False, use_classifier=False)
    return nlp.model.BERTClassifier(bert, num_classes=3, dropout=0.1)


# ---------------------------------------------------------------------------------------------------- hostile tensors


@pytest.mark.parametrize("shape", [(0, 2**62, 4), (0, 2**62, 2**62), (0,), (2, 0, 3)])
def test_arrays_without_values(shape, tmp_path):
    """Version 3 allows them: nothing of the file's length speaks against sizes that no array can have."""
    path = tmp_path / "zero.params"
    array = struct.pack(f"<Iii{len(shape)}qiii", 0xF993FACA, 0, len(shape), *shape, 1, 0, 0)
    path.write_bytes(struct.pack("<QQQ", 0x112, 0, 1) + array + struct.pack("<QQ", 1, 1) + b"w")
    if max(shape) > 2**60:
        with pytest.raises(InputError, match="zero.params.* shape"):
            read_params(path)
    else:
        assert read_params(path)["w"].shape == shape


def test_one_tensor_under_two_spellings_is_named():
    architecture = sizes("bert")
    tensors = to_gluon(random_weights(architecture), architecture)
    tensors["pooler.bias"] = tensors["bert.pooler.bias"] * 2
    with pytest.raises(InputError, match="pooler.bias is there a second time"):
        from_gluon(tensors, architecture)


@pytest.mark.parametrize("shape", [(), (7,), (12, 9), (12, 8, 1)])
def test_positions_of_another_shape_are_left_for_the_check_of_shapes(shape):
    """RoBERTa's positions are moved down two rows, which must not stumble over what is no table."""
    architecture = sizes("roberta")
    tensors = to_gluon(random_weights(architecture), architecture)
    tensors["roberta.encoder.position_weight"] = np.zeros(shape, np.float32)
    assert from_gluon(tensors, architecture)["bert.embeddings.position_embeddings.weight"].shape == shape


def test_a_value_beyond_float32_comes_without_a_warning(recwarn):
    architecture = sizes("bert")
    tensors = to_gluon(random_weights(architecture), architecture)
    tensors["bert.pooler.bias"] = np.full(8, 1e300)
    assert np.isinf(from_gluon(tensors, architecture)["bert.pooler.dense.bias"]).all() and not recwarn.list
