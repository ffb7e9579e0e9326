"""Records on Dask workers: the same draws as on one machine, time and memory per worker.

Run: ``python benchmarks/shards.py [penalty|surrogate]`` (Linux only: memory is read from /proc). Needs about
8 GB; the surrogate takes some minutes in each row.
"""

import os
import signal
import sys
import threading
import time
from functools import partial

import distributed
import numpy as np
import pymc as pm
from _report import write_report

import pymc_dp as dp

N, D, CHUNK, BLOCK, DRAWS = 10_000_000, 10, 10_000, 2_500_000, 20


def memory(field: str) -> float:
    """A field of this process's /proc/self/status, in MiB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def make(block: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(block)
    x = rng.normal(size=(n, D))
    p = 1 / (1 + np.exp(-x.sum(axis=1) / 3))
    return x, (rng.random(n) < p).astype(np.int32)


def records(blocks: range) -> dict[str, np.ndarray]:
    """Made where they are called for, as a worker would read its own file."""
    X = np.empty((BLOCK * len(blocks), D))
    Y = np.empty(len(X), dtype=np.int32)
    for k, block in enumerate(blocks):
        rows = slice(k * BLOCK, (k + 1) * BLOCK)
        X[rows], Y[rows] = make(block, BLOCK)
    return {"X": X, "Y": Y}


def model_of(X: np.ndarray, Y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=D)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=pm.Data("Y", Y))
    return model


COMMON = {"chains": 1, "draws": DRAWS, "chunk_size": CHUNK}
SAMPLERS = {
    "penalty": (dp.DPPenalty, {"noise_multiplier": 100.0, "clip": 4.0, "scale": 3e-4}),
    "surrogate": (dp.DPSurrogate, {"epsilon": 1.0, "delta": 1e-8}),
}
SAMPLER = sys.argv[1] if len(sys.argv) > 1 else "penalty"


def build(model: pm.Model, **keywords):
    start = time.perf_counter()
    which, settings = SAMPLERS[SAMPLER]
    step = which(
        **COMMON, **settings, model=model, noise_source=dp.InsecureSeededNoise(1),
        rng=np.random.default_rng(2), **keywords,
    )  # fmt: skip
    step.stop_tuning()
    return step, time.perf_counter() - start


def prepare(step) -> float:
    """Seconds of what comes before the first iteration: the surrogate, if there is one."""
    start = time.perf_counter()
    step.prepare()
    step._start_chain()
    return time.perf_counter() - start


def run(step, before=None) -> tuple[list, list[float]]:
    """Draws with their acceptance rates, and seconds of each iteration."""
    point, path, seconds = step.model.initial_point(), [], []
    for t in range(DRAWS):
        if before is not None:
            before(t)
        start = time.perf_counter()
        point, (stats,) = step.step(point)
        seconds.append(time.perf_counter() - start)
        path.append([*point["beta"], stats["accept_rate"]])
    return path, seconds


def on_cluster(workers: int, kill: bool = False) -> tuple[list, list]:
    per = N // BLOCK // workers
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        load = partial(load_shard, per=per)
        x, y = make(100, 7)
        shards = dp.Shards(client, load, records=[BLOCK * per] * workers)
        # Compiling is the same for any data: a few records first leave it out of the memory.
        build(model_of(x, y), shards=dp.Shards(client, tiny, records=[100] * workers))
        idle = max(client.run(memory, "VmRSS").values())
        step, seconds_to_build = build(model_of(x, y), shards=shards)
        victim = next(iter(client.run(os.getpid).values()))

        def kill_in(seconds: float) -> None:
            if kill:
                threading.Timer(seconds, os.kill, (victim, signal.SIGKILL)).start()

        def before(t: int) -> None:
            if t == DRAWS // 2 and SAMPLER == "penalty":
                kill_in(0.3)

        if SAMPLER == "surrogate":  # which asks the workers nothing afterwards
            kill_in(30.0)
        preparing = prepare(step)
        cpu = client.run(time.process_time)
        path, seconds = run(step, before)
        # Of a worker that was there all the time.
        used = [now - cpu[w] for w, now in client.run(time.process_time).items() if w in cpu]
        peak = max(client.run(memory, "VmHWM").values())
    return path, [seconds_to_build, preparing, seconds, max(used) / DRAWS, idle, peak]


def load_shard(k: int, per: int) -> dict[str, np.ndarray]:
    return records(range(k * per, (k + 1) * per))


def tiny(k: int) -> dict[str, np.ndarray]:
    x, y = make(k, 100)
    return {"X": x, "Y": y}


def main() -> None:
    idle = memory("VmRSS")
    step, seconds_to_build = build(model_of(**records(range(N // BLOCK))))
    preparing, cpu = prepare(step), time.process_time()
    expected, seconds = run(step)
    cpu = (time.process_time() - cpu) / DRAWS
    rows = [
        ["one machine", seconds_to_build, preparing, float(np.median(seconds[1:])), max(seconds[1:]), cpu, idle,
         memory("VmHWM"), "-"]
    ]  # fmt: skip
    del step
    # With the surrogate, each row takes minutes.
    cases = [(2, False), (4, False), (2, True)] if SAMPLER == "penalty" else [(4, False), (2, True)]
    for workers, kill in cases:
        path, (seconds_to_build, preparing, seconds, cpu, idle, peak) = on_cluster(workers, kill)
        rows.append(
            [
                f"{workers} workers" + (", one killed" if kill else ""),
                seconds_to_build,
                preparing,
                float(np.median(seconds[1:])),
                max(seconds[1:]),
                cpu,
                idle,
                peak,
                "identical" if path == expected else "DIFFERENT",
            ]
        )
    size = N * (8 * D + 4) / 2**20
    write_report(
        "shards" if SAMPLER == "penalty" else f"shards_{SAMPLER}",
        "Shards on Dask workers",
        f"Logistic regression, n = {N:,}, d = {D} ({size:.0f} MiB of data), {DRAWS} iterations of "
        f"{SAMPLERS[SAMPLER][0].__name__} with seeded noise, one shard per worker, single-threaded worker processes of one "
        f"computer with {os.cpu_count()} cores. Building loads and checks the shards. Memory is that of "
        "the process with most: resident before the data are loaded, and its peak (on one machine "
        "PyMC's own copy and the checks of the model are part of it). CPU is what the "
        "busiest worker spends per iteration; other programs ran on the computer, so it says more than "
        "the clock. The last column compares every draw and acceptance rate, to the last bit, with those of one machine; "
        "in the last row a worker got SIGKILL in the middle of an iteration, or of the surrogate.",
        [
            "",
            "building, s",
            "surrogate, s",
            "iteration, s (median)",
            "longest, s",
            "CPU, s",
            "before, MiB",
            "peak, MiB",
            "draws",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
