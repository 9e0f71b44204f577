"""Jobs: run a function later. A thin API over the features of each broker.

>>> from matador.jobs import Queue, Worker
>>> queue = Queue("emails", provider="sqlite:///jobs.db")
"""

from matador.errors import (
    DuplicateJobError,
    InvalidJobError,
    JobCanceledError,
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobProviderError,
    JobsNotAddedError,
    JobStateError,
    JobsUnsupportedError,
    JobTimeoutError,
    PermanentJobError,
    UniqueJobError,
)
from matador.jobs.events import (
    JobActive,
    JobCompleted,
    JobFailed,
    JobProgress,
    JobRetrying,
    QueueDrained,
    QueueErrored,
    QueuePaused,
    QueueResumed,
    ShutdownTimeout,
    WorkerShuttingDown,
)
from matador.jobs.flows import RESULT, Flow, JobHandle, Step, SyncFlow, SyncJobHandle, chain, group
from matador.jobs.functions import DeclaredJob, DeclaredSchedule, SyncJob, current_job
from matador.jobs.job import ActiveJob, Job
from matador.jobs.options import JobOptions, Unique, Unsupported
from matador.jobs.provider import JobProvider
from matador.jobs.queue import Queue, QueueHealth, QueueStats, SyncQueue
from matador.jobs.schedules import Schedule
from matador.jobs.worker import Worker
from matador.model.job import JobCapabilities, JobStatus, Keep
from matador.model.job_limits import RateLimit
from matador.policy.backoff import Exponential, Fixed

__all__ = [
    "RESULT",
    "ActiveJob",
    "DeclaredJob",
    "DeclaredSchedule",
    "DuplicateJobError",
    "Exponential",
    "Fixed",
    "Flow",
    "InvalidJobError",
    "Job",
    "JobActive",
    "JobCanceledError",
    "JobCapabilities",
    "JobCompleted",
    "JobError",
    "JobFailed",
    "JobFailedError",
    "JobHandle",
    "JobNotFoundError",
    "JobOptions",
    "JobProgress",
    "JobProvider",
    "JobProviderError",
    "JobRetrying",
    "JobStateError",
    "JobStatus",
    "JobTimeoutError",
    "JobsNotAddedError",
    "JobsUnsupportedError",
    "Keep",
    "PermanentJobError",
    "Queue",
    "QueueDrained",
    "QueueErrored",
    "QueueHealth",
    "QueuePaused",
    "QueueResumed",
    "QueueStats",
    "RateLimit",
    "Schedule",
    "ShutdownTimeout",
    "Step",
    "SyncFlow",
    "SyncJob",
    "SyncJobHandle",
    "SyncQueue",
    "Unique",
    "UniqueJobError",
    "Unsupported",
    "Worker",
    "WorkerShuttingDown",
    "chain",
    "current_job",
    "group",
]
