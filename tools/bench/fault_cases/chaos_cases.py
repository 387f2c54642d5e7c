"""Everything is killed at random moments, in deterministic mode and without.

chaos          The final state must be that of the same run undisturbed, bit for bit.
chaos_diloco   The same with local steps and a hosted model.
chaos_overlap  The same with two rounds under way at once.
chaos_loose    Without deterministic mode and with a quorum of 1 of 2: replicas equal, the ledger of
               contributions exact (I1 to I4 over what agents and store recorded), and the final
               loss within what seeds differ by.
"""

import random
import statistics
import time

from chaos import kill_at_random

from .case import DEBUG, Case, all_equal, noise_of_three, state_of
from .ledger import judge

KINDS = ("coordinator", "agent", "rank")
KILLS_MIN, KILLS_OF_A_KIND_MIN = 60, 15
LOCAL_STEPS = 5


def _train(bench, kills, draw_seed, **settings):
    """One run with `kills` of each kind. Returns (counts of kills, summaries, seconds)."""
    started = time.monotonic()
    with Case(bench, **settings) as case:
        case.start()
        wanted = {kind: kills for kind in KINDS if kills}
        draw = random.Random(draw_seed)
        done = kill_at_random(case.run, draw, wanted, settings["rounds"], case.deadline, bench.say)
        summaries = case.finish()
    return done, summaries, time.monotonic() - started


def _each(done):
    return {f"kills_{kind}": done[kind] for kind in sorted(done)}


def chaos(bench):
    """R1, R8 to R13 and C9 at once."""
    _chaos(bench, "chaos", local_steps=1)


def chaos_diloco(bench):
    """The same with five local steps a round and a model that the coordinator hosts."""
    more = f"schedule {{ local_steps: {LOCAL_STEPS} }}"
    _chaos(bench, "chaos_diloco", local_steps=LOCAL_STEPS, preset="diloco", more=more)


def chaos_overlap(bench):
    """The same with updates that come a round late, and the look ahead."""
    _chaos(bench, "chaos_overlap", local_steps=1, more="overlap: 1")


def _chaos(bench, name, local_steps, **spec):
    rounds, kills = (40, 2) if bench.short else (200, 20)
    every = 4 if bench.short else 10
    # The spec and the kills count steps.
    settings = {"rounds": rounds * local_steps, "deterministic": True, "checkpoint_every": every}
    settings.update(spec)
    bench.say(f"seed {bench.seed}: --case {name} --seed {bench.seed} kills the same processes")
    _, summaries, seconds = _train(bench, 0, bench.seed, **settings)
    expected = state_of(summaries)
    bench.say(f"undisturbed: {seconds:.1f} s, state {expected}")
    done, summaries, seconds = _train(bench, kills, bench.seed, **settings)
    state = state_of(summaries)
    bench.say(f"disturbed: {seconds:.1f} s, state {state}")
    equal = state != "" and state == expected
    enough = bench.short or (
        sum(done.values()) >= KILLS_MIN and all(done[k] >= KILLS_OF_A_KIND_MIN for k in KINDS)
    )
    fresh = sum(summary["fresh_residuals"] for summary in summaries.values())
    bench.result(
        name, equal, 0 if equal else 1, 0, "states_that_differ", enough,
        kills=sum(done.values()), **_each(done), rounds=rounds, seed=bench.seed,
        fresh_residuals=fresh, seconds=seconds, params_equal=equal,
    )  # fmt: skip


def chaos_loose(bench):
    """The same without deterministic mode."""
    rounds, kills, seeds = (60, 1, 0) if bench.short else (600, 20, 3)
    settings = {
        "rounds": rounds, "quorum": 1, "grace_ms": 300, "deadline_ms": 2000, "eval_sequences": 64,
    }  # fmt: skip
    calm = []
    for seed in range(1, seeds + 1):
        _, summaries, seconds = _train(bench, 0, 0, seed=seed, **settings)
        calm.append(summaries["a"]["val_loss"])
        bench.say(f"undisturbed, seed {seed}: {seconds:.1f} s, held-out loss {calm[-1]:.4f}")
    bench.say(f"seed {bench.seed}: --case chaos_loose --seed {bench.seed} kills the same processes")
    started = time.monotonic()
    with Case(bench, seed=1, **settings) as case:
        case.cluster.flags["agent"] = DEBUG
        case.start()
        wanted = {kind: kills for kind in KINDS}
        draw = random.Random(bench.seed)
        done = kill_at_random(case.run, draw, wanted, rounds, case.deadline, bench.say)
        summaries = case.finish()
        exact, said = judge(bench, case, summaries)
    bench.say(f"ledger: {said}")
    equal = all_equal(summaries)
    loss = summaries["a"]["val_loss"]
    # The short form does not look.
    mean = statistics.mean(calm or [loss])
    noise = noise_of_three(calm) if calm else 0
    away = abs(loss - mean)
    enough = bench.short or (
        sum(done.values()) >= KILLS_MIN and all(done[k] >= KILLS_OF_A_KIND_MIN for k in KINDS)
    )
    bench.result(
        "chaos_loose", equal and exact, away, noise, "loss_from_mean_of_seeds", enough,
        kills=sum(done.values()), **_each(done), rounds=rounds, seed=bench.seed,
        params_equal=equal, ledger_exact=exact, loss=loss, calm_mean=mean,
        seconds=time.monotonic() - started,
    )  # fmt: skip


CASES = {
    "chaos": chaos,
    "chaos_diloco": chaos_diloco,
    "chaos_overlap": chaos_overlap,
    "chaos_loose": chaos_loose,
}
