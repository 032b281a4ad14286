"""Timeline of spans, sampler, compile log, environment, and the run folder they are written to."""

from .compile_log import Compile, CompileLog
from .environment import collect, identity
from .host_load import HostLoad
from .memory_sink import MemorySink
from .origin import process_origin
from .run_folder import RunFolder
from .sampler import Sampler
from .tee_sink import TeeSink
from .timeline import EarlierTime, Span, Timeline

__all__ = [
    "Compile",
    "CompileLog",
    "EarlierTime",
    "HostLoad",
    "MemorySink",
    "RunFolder",
    "Sampler",
    "Span",
    "TeeSink",
    "Timeline",
    "collect",
    "identity",
    "process_origin",
]
