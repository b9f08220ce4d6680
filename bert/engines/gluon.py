"""The MXNet engine's door: what the installed MXNet can run on a device, and building the engine.

MXNet's last wheels (1.9.1) fail to import in many ways; each is found here and told in one line with its remedy.
Nothing here imports MXNet before those checks; the model and its optimizer are in gluon_engine.py.
"""

import ctypes
import os
import re
import sys
from importlib import metadata
from pathlib import Path

from bert import InputError
from bert.precision import DTYPES, Capability

# The compute capabilities whose machine code each wheel of MXNet 1.9.1 holds, read from the fatbins of its libmxnet.so.
# None holds PTX, so no other architecture can be compiled at run time.
WHEELS = {
    "mxnet": (),
    "mxnet-cu102": ((3, 0), (5, 0), (6, 0), (7, 0), (7, 5)),
    "mxnet-cu117": ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6)),
}

# What the extra mxnet-cu117 installs beside the wheel, which links to these libraries by name only.
CUDA_PACKAGES = (
    "nvidia-cuda-runtime-cu11",
    "nvidia-cuda-nvrtc-cu11",
    "nvidia-nvtx-cu11",
    "nvidia-cublas-cu11",
    "nvidia-cufft-cu11",
    "nvidia-curand-cu11",
    "nvidia-cusparse-cu11",
    "nvidia-cusolver-cu11",
    "nvidia-cudnn-cu11",
    "nvidia-nccl-cu11",
)

TENSOR_CORES = (7, 0)  # the first compute capability with them

# What oneDNN 2.x, MXNet's library for CPUs, asks of a processor for bfloat16 products; without, it stops at run time.
AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


class UnusableError(Exception):
    """Why MXNet cannot run here, and the remedy, in one line."""


def capabilities(gpu):
    """Capability of each of DTYPES on GPU number `gpu`, or on the CPU for None. Imports MXNet; never raises."""
    try:
        wheel = _installed_wheel()
        compute_capability = None if gpu is None else _check_gpu(gpu, wheel)
        mx = _import_mxnet(wheel)
        if gpu is None:
            return _on_cpu()
        if gpu >= _count_gpus(mx):
            raise UnusableError(f"{wheel} sees {_count_gpus(mx)} GPUs, and --gpu {gpu} counts from 0: use --engine pytorch")
        return _on_gpu(compute_capability)
    except UnusableError as reason:
        return dict.fromkeys(DTYPES, Capability(False, str(reason)))


def create(architecture, num_labels, *, gpu, checkpoint_activations=False, **settings):
    """A GluonEngine (see bert.engines.Engine for the arguments); InputError for what MXNet or GluonNLP cannot do."""
    if checkpoint_activations:
        raise InputError("--engine mxnet: --checkpoint_activations is the PyTorch engine's; lower --batch_size instead")
    try:
        _import_mxnet(_installed_wheel())
    except UnusableError as reason:
        raise InputError(f"--engine mxnet: {reason}") from None
    from bert.engines.gluon_engine import GluonEngine

    device = f"cpu, {_cpu_threads()} threads" if gpu is None else f"cuda:{gpu} {_cuda_device(gpu)[0]}"
    return GluonEngine(architecture, num_labels, gpu=gpu, device=device, **settings)


def _on_cpu():
    return {
        "float32": Capability(True),
        "float16": Capability(False, "MXNet's float16 matrix products need a GPU"),
        "bfloat16": Capability(True, "attention products in float32: MXNet has no others")
        if _processor_flags() >= AVX512
        else Capability(False, "MXNet's bfloat16 matrix products need a processor with AVX-512"),
    }


def _processor_flags():
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    return set(found[1].split()) if found else set()


def _on_gpu(compute_capability):
    slow = "" if compute_capability >= TENSOR_CORES else "this GPU has no tensor cores: less memory, hardly faster"
    return {
        "float32": Capability(True),
        "float16": Capability(True, slow),
        "bfloat16": Capability(False, "MXNet's bfloat16 is for CPUs only"),
    }


def _installed_wheel():
    """Which of WHEELS is installed, after the checks that need no library to be loaded."""
    wheels = [wheel for wheel in WHEELS if _version(wheel)]
    if not wheels:
        raise UnusableError("MXNet is not installed: pip install '.[mxnet]', or use --engine pytorch")
    if sys.version_info >= (3, 12):
        raise UnusableError(f"MXNet needs Python 3.11 or older, this is {sys.version.split()[0]}: use --engine pytorch")
    numpy = _version("numpy")
    if tuple(int(part) for part in numpy.split(".")[:2]) >= (1, 24):
        raise UnusableError(f"MXNet needs numpy < 1.24, found {numpy}: pip install 'numpy<1.24', or use --engine pytorch")
    if not _version("gluonnlp"):
        raise UnusableError("gluonnlp is not installed: pip install gluonnlp==0.10.0, or use --engine pytorch")
    return wheels[-1]


def _version(distribution):
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _check_gpu(gpu, wheel):
    """Compute capability of the GPU, or UnusableError where the wheel has no code for it."""
    if not WHEELS[wheel]:
        raise UnusableError(
            f"the installed {wheel} is built for CPUs: pip install '.[mxnet-cu117]', or use --engine pytorch"
        )
    name, (major, minor) = _cuda_device(gpu)
    # Machine code runs on every device of its major version with the same or a higher minor version
    # (CUDA C++ Programming Guide, "Binary Compatibility").
    if not any(major == built_major and minor >= built_minor for built_major, built_minor in WHEELS[wheel]):
        built = ", ".join(f"{a}.{b}" for a, b in WHEELS[wheel])
        raise UnusableError(
            f"{wheel} has no code for {name} (compute capability {major}.{minor}; it has {built}): use --engine pytorch"
        )
    return major, minor


def _cuda_device(gpu):
    """(name, (major, minor)) of a GPU, asked of the driver itself: MXNet offers no way to ask."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UnusableError("no NVIDIA driver (libcuda.so.1) was found: install it, or leave out --gpu") from None
    count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(100)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        raise UnusableError("the NVIDIA driver reports no usable GPU: check nvidia-smi, or leave out --gpu")
    if driver.cuDeviceGet(ctypes.byref(device), gpu):
        raise UnusableError(f"there is no GPU {gpu}: the NVIDIA driver sees {count.value}, counted from 0")
    driver.cuDeviceGetName(name, len(name), device)
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    return name.value.decode(), (major.value, minor.value)


def _count_gpus(mx):
    try:
        return mx.context.num_gpus()
    except mx.base.MXNetError:  # such as a driver older than the CUDA version of the wheel
        return 0


def _import_mxnet(wheel):
    """The mxnet module, imported with gluonnlp, or UnusableError in place of the loader's traceback."""
    # LayerNorm, softmax and norms then add up in a wider type than they read. MXNet reads it once, on import.
    os.environ.setdefault("MXNET_SAFE_ACCUMULATION", "1")
    if wheel == "mxnet-cu117":
        _load_cuda_libraries()
    try:
        import gluonnlp  # noqa: F401  its compiled part may be missing too
        import mxnet as mx
    except OSError as error:
        library = re.match(r"\S+\.so[.\d]*", str(error))
        raise UnusableError(f"{wheel} cannot load {library[0] if library else error}: {_remedy(wheel, library)}") from None
    except Exception as error:  # noqa: BLE001  old compiled code fails in many ways
        raise UnusableError(
            f"MXNet or GluonNLP failed to import ({type(error).__name__}: {error}): use --engine pytorch"
        ) from None
    return mx


def _remedy(wheel, library):
    if library and library[0].startswith("libcuda.so"):
        return "install the NVIDIA driver, or '.[mxnet]' to run on the CPU"
    if wheel == "mxnet-cu117":
        return "pip install '.[mxnet-cu117]', or use --engine pytorch"
    if wheel == "mxnet-cu102":
        return "install CUDA 10.2, cuDNN 8 and NCCL, or use --engine pytorch"
    return "install the system package that holds it, or use --engine pytorch"


def _load_cuda_libraries():
    """Load the CUDA libraries of CUDA_PACKAGES for all, so that the loader finds them when it loads libmxnet.so."""
    pending = [
        file.locate()
        for package in CUDA_PACKAGES
        if _version(package)
        for file in metadata.files(package) or ()
        if re.search(r"\.so(\.\d+)*$", file.name)
    ]
    loaded = True
    while pending and loaded:  # some need others, so go on while a round gets further
        waiting = [path for path in pending if not _load(path)]
        loaded, pending = len(waiting) < len(pending), waiting


def _load(path):
    try:
        return bool(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
    except OSError:
        return False


def _cpu_threads():
    return int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
