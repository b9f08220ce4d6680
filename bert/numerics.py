"""The range guard: constants in a mixed-precision graph that its low-precision type cannot hold are made to fit.

Under AMP an epsilon of 1e-12 or a mask of -1e18 may land in a float16 operator, where it is 0 or -inf. Works on any
traced MXNet graph or HybridBlock; knows nothing of BERT. The rule itself is plain Python; MXNet is imported when used.
"""

import json
import math
from typing import NamedTuple

import numpy as np

#: dtype -> (largest finite value, smallest positive subnormal value). IEEE 754 binary16; bfloat16 is float32 with a
#: significand of 8 bits, so its subnormals step by 2**-133.
RANGES = {
    "float16": (65504.0, 2.0**-24),
    "bfloat16": ((2 - 2.0**-7) * 2.0**127, 2.0**-133),
}

#: Operator attributes that hold a constant computed with in the operator's own type: operands, epsilons, fill values
#: and clip bounds.
CONSTANTS = ("scalar", "eps", "value", "fill_value", "constant_value", "on_value", "off_value", "a_min", "a_max")


#: MXNet's stand-in for bfloat16, which NumPy lacks.
MXNET_BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


class Change(NamedTuple):
    """One truncated constant."""

    node: str
    attribute: str
    old: float
    new: float

    def __str__(self):
        return f"{self.node}: {self.attribute} {self.old:g} -> {self.new:g}"


def representable(value, dtype):
    """`value`, truncated to what `dtype` ("float16", "bfloat16") can hold.

    A magnitude beyond the largest finite value becomes that value; one that is not zero but would round to zero becomes
    the smallest that does not. Infinities, NaN and all other values, rounded or not, are returned as they are.
    """
    largest, smallest = RANGES[dtype]
    if not math.isfinite(value):
        return value
    if abs(value) > largest:
        return math.copysign(largest, value)
    if value and abs(value) <= smallest / 2:  # a tie rounds to even, which is zero
        return math.copysign(smallest, value)
    return value


def guard_range(symbol, dtype, input_types):
    """(symbol, changes): `symbol` with every constant of its `dtype` operators made representable.

    `input_types` maps names of the symbol's arguments to types; those not named are float32, as AMP keeps parameters.
    Operators whose inferred type is another one stay untouched, and so do the bodies of control-flow operators.
    `changes` lists each Change in graph order.
    """
    import mxnet as mx

    graph = _graph(symbol)
    changes = []
    for node, node_type in zip(graph["nodes"], _node_types(graph, input_types)):
        if node_type != dtype:
            continue
        for attribute in CONSTANTS:
            old = _number(node.get("attrs", {}).get(attribute))
            if old is None or (new := representable(old, dtype)) == old:
                continue
            node["attrs"][attribute] = repr(new)
            changes.append(Change(node["name"], attribute, old, new))
    return (mx.sym.load_json(json.dumps(graph)) if changes else symbol), changes


def guard_block(block, dtype, *inputs):
    """Apply guard_range to a hybridized HybridBlock, in place; returns the changes.

    `inputs` are example NDArrays (of any size) for the block's arguments. A later hybridize() or cast() discards the
    guarded graph, as it discards any traced graph.
    """
    block._clear_cached_op()
    arguments, symbol = block._get_graph(*inputs)  # what the next call would trace, and now finds
    arrays = [array for array in _flatten(inputs) if array is not None]
    types = {argument.name: _type_name(array.dtype) for argument, array in zip(arguments, arrays)}
    types.update((name, _type_name(parameter.dtype)) for name, parameter in block.collect_params().items())
    guarded, changes = guard_range(symbol, dtype, types)
    block._cached_graph = arguments, guarded
    return changes


def node_types(symbol, input_types):
    """(name, operator, type) of every node of a traced graph, in graph order: "float32", "float16", "bfloat16", ...

    `input_types` as for guard_range.
    """
    graph = _graph(symbol)
    return [
        (node["name"], node["op"], node_type) for node, node_type in zip(graph["nodes"], _node_types(graph, input_types))
    ]


def _graph(symbol):
    return json.loads(symbol.tojson(remove_amp_cast=False))  # its default would drop every cast that AMP put in


def _node_types(graph, input_types):
    """Type name of the first output of each node of a graph in MXNet's JSON form."""
    import mxnet as mx

    # With every node as a head, inference yields one type a node, in the nodes' order.
    heads = [[number, 0, 0] for number in range(len(graph["nodes"]))]
    everything = mx.sym.load_json(json.dumps({**graph, "heads": heads}))
    known = {name: input_types.get(name, "float32") for name in everything.list_arguments()}
    known = {name: MXNET_BFLOAT16 if dtype == "bfloat16" else dtype for name, dtype in known.items()}
    _, output_types, _ = everything.infer_type(**known)
    return [_type_name(output_type) for output_type in output_types]


def _type_name(dtype):
    return "bfloat16" if dtype == MXNET_BFLOAT16 else np.dtype(dtype).name


def _number(text):
    """A finite constant, or None for an attribute that is absent, "None", infinite or NaN."""
    try:
        number = float(text)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _flatten(inputs):
    for item in inputs:
        if isinstance(item, (list, tuple)):
            yield from _flatten(item)
        else:
            yield item
