"""A server that runs the script's main in forks of itself, each bounded in memory and time.

One JSON list of arguments per line comes in, one JSON object {code, out, err} goes out. The first list is run in the server
itself, unbounded: it pays for every import that the others then need not. A run that asks for more memory
than allowed meets MemoryError, one that hangs is ended by SIGALRM: both show as an exit code that no test expects.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import finetune_classifier

MEMORY, SECONDS = 512 * 2**20, 60  # beyond what the imports take; wall clock


def address_space():
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def bounded(arguments, out, err):
    """Run main in this process, which is a fork, within the bounds; never returns."""
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    limit = address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)
    code = 99  # a traceback
    try:
        code = finetune_classifier.main(arguments)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve():
    with contextlib.redirect_stdout(sys.stderr):
        finetune_classifier.main(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if not child:
                bounded(json.loads(line), out, err)
            _, status = os.waitpid(child, 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
            for name, stream in (("out", out), ("err", err)):
                stream.seek(0)
                answer[name] = stream.read().decode(errors="backslashreplace")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
