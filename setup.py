"""Installs the package `bert` and what one engine needs: pip install '.[torch]' or '.[mxnet]'."""

import hashlib
import platform
import re
import sys
from pathlib import Path

from setuptools import Extension, setup

here = Path(__file__).parent
version = re.search(r'__version__ = "(.+)"', (here / "bert/__init__.py").read_text(encoding="utf-8")).group(1)

# The CUDA 11 libraries that MXNet's cu117 build loads, as packages: nothing but the driver need be installed.
CUDA_11 = [
    f"nvidia-{name}-cu11"
    for name in (
        "cublas",
        "cuda-nvrtc",
        "cuda-runtime",
        "cufft",
        "curand",
        "cusolver",
        "cusparse",
        "nccl",
        "nvtx",
    )
] + ["nvidia-cudnn-cu11>=8,<9"]
MXNET = ["gluonnlp==0.10.0", "numpy<1.24"]
# The coverage-guided fuzzer, where it has wheels; without it its two tests are skipped.
ATHERIS = "atheris; sys_platform == 'linux' and platform_machine == 'x86_64' and python_version >= '3.11'"

digest = hashlib.sha256((here / "bert/engines/kernels.cpp").read_bytes()).hexdigest()


def kernels(instructions, *flags):
    """The CPU kernels for one instruction set. Optional: without a compiler the program runs all the same, slower."""
    return Extension(
        f"bert.engines._kernels_{instructions}",
        ["bert/engines/kernels.cpp"],
        define_macros=[("SOURCE_DIGEST", f'"{digest}"')],
        extra_compile_args=["-std=c++17", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", *flags],
        optional=True,
    )


# Named as torch.backends.cpu.get_cpu_capability() names them, in lower case.
KERNELS = [kernels("default")]
if platform.machine() in ("x86_64", "AMD64"):
    KERNELS += [kernels("avx2", "-march=x86-64-v3"), kernels("avx512", "-march=x86-64-v4", "-mprefer-vector-width=512")]

setup(
    name="finetune-classifier",
    version=version,
    description="Fine-tune a pretrained BERT on GLUE in mixed precision, on MXNet or PyTorch",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=["bert", "bert.engines"],
    package_data={"bert": ["published.json", "report.html"], "bert.engines": ["kernels.cpp"]},
    py_modules=["finetune_classifier"],
    ext_modules=[] if sys.platform == "win32" else KERNELS,
    entry_points={"console_scripts": ["finetune-classifier=finetune_classifier:main"]},
    install_requires=["numpy", "tqdm", "tokenizers", "safetensors", "scikit-learn", "scipy"],
    extras_require={
        "torch": ["torch>=2.13"],
        "mxnet": ["mxnet==1.9.1", *MXNET],
        "mxnet-cu102": ["mxnet-cu102==1.9.1", *MXNET],
        "mxnet-cu117": ["mxnet-cu117==1.9.1", *CUDA_11, *MXNET],
        "hub": ["huggingface_hub", "polars"],
        "report": ["matplotlib"],
        "tensorboard": ["tensorboard"],
        "dev": ["pytest", "hypothesis", "ruff", "transformers", "accelerate", ATHERIS],
    },
)
