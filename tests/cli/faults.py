"""faults.py - ranks that are processes are killed and stopped at random moments of a run.

After each fault: how long the command takes to end, its status, what it says, whether processes or files are left,
whether the newest checkpoint is whole, and whether the same command goes on to the end with the losses of a run that
was not disturbed.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

RANKS = 3
TIMEOUT_S = 2
KILL_S, STOP_S = 10, TIMEOUT_S + 5
STEPS = 24
BASE = ["train", "model=tiny", "seq=32", "batch.micro=1", "batch.accum=2", f"steps={STEPS}", "sched.warmup=2",
        "eval.every=6", "eval.batches=2", "data.val=0.05", "generate.tokens=8", "device=cpu", "threads=1",
        "save.every=2", "comm.bucket=64KiB", f"comm.timeout={TIMEOUT_S}s", "comm.engine=mpi"]
LAYOUTS = [["parallel.data=3", "zero.stage=1"], ["parallel.pipe=3"], ["parallel.data=3", "zero.stage=3"]]
OTHER = [["parallel.pipe=3", "batch.accum=6"], ["ranks=1"], ["ranks=1", "batch.accum=6"]]  # the same sequences
DOING = r"(?:at the start|in (?:'\w+' of '[\w.]+' in '\w+'|[\w ]+?)(?:, after .+?)?)"
PHASES = ["start", "plan", "load", "step", "save", "end", "any"]


def fields(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()
    except OSError:
        return None


def marked(mark):
    """Processes whose environment has the mark, by id; with their rank, or None."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if b"FAULTS_MARK=" + mark.encode() not in words:
            continue
        f = fields(name)
        if not f or f[0] == "Z":
            continue
        rank = next((int(w.split(b"=")[1]) for w in words
                     if w.split(b"=")[0] in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")), None)
        found[int(name)] = rank
    return found


def losses(path):
    """What the log says of each step, the newest run's word for each."""
    out = {}
    try:
        with open(path) as f:
            for line in f:
                x = json.loads(line)
                if "grad_norm" in x:
                    out[x["step"]] = (x["loss"], x["grad_norm"], x["tokens"])
    except (OSError, ValueError):
        pass
    return out


class Run:
    number = 0

    def __init__(self, o, words, folder):
        Run.number += 1
        self.o, self.folder = o, folder
        self.mark = f"{os.getpid()}-{Run.number}"
        self.scratch = os.path.abspath(f"scratch-{Run.number}")
        os.mkdir(self.scratch)
        self.shared = ""  # the folder of the ranks' shared memory
        self.err_path = folder + ".err"
        with open(self.err_path, "wb") as err, open(folder + ".out", "wb") as out:
            self.process = subprocess.Popen(
                [o.haggle] + BASE + words + ["run.dir=" + folder], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env={**os.environ, "FAULTS_MARK": self.mark, "TMPDIR": self.scratch},
                start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.begin = time.time()

    def said(self):
        with open(self.err_path, errors="replace") as f:
            return f.read()

    def ranks(self):
        found = {r: p for p, r in marked(self.mark).items() if r is not None}
        for pid in found.values():
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    words = f.read().split(b"\0")
                self.shared = next((w.split(b"=", 1)[1].decode() for w in words
                                    if w.startswith(b"OMPI_MCA_btl_vader_backing_directory=")), self.shared)
            except OSError:
                pass
        return found

    def reached(self, phase, step):
        """Whether the run is in this phase. Looks at what it has written."""
        if phase == "start":
            return len(self.ranks()) == RANKS
        if phase == "plan":
            return "ranks    " in self.said()
        if phase == "load":
            return "ranks    " in self.said() and os.path.exists(self.folder)
        if phase == "step":
            return max(losses(self.folder + "/log.jsonl"), default=0) >= step
        if phase == "save":
            try:
                return any(".tmp" in n for n in os.listdir(self.folder + "/checkpoints"))
            except OSError:
                return False
        if phase == "end":
            return max(losses(self.folder + "/log.jsonl"), default=0) >= STEPS
        return time.time() - self.begin >= step * 0.1

    def wait_for(self, phase, step):
        while self.process.poll() is None and not self.reached(phase, step):
            time.sleep(0.002 if phase in ("save", "end") else 0.01)
        return self.process.poll() is None

    def finish(self, limit):
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        return time.time()

    def clean_up(self):
        """What is left of the run a moment after its end."""
        until, wrong = time.time() + 3, []
        while marked(self.mark) and time.time() < until:
            time.sleep(0.05)
        left = marked(self.mark)
        if left:
            wrong.append(f"left processes {left}: " + str([fields(p)[0] if fields(p) else "" for p in left]))
        for p in left:
            try:
                os.kill(p, signal.SIGKILL)
            except OSError:
                pass
        files = [os.path.join(d, n) for d, _, names in os.walk(self.scratch) for n in names]
        if os.listdir(self.scratch):
            wrong.append(f"left in TMPDIR: {os.listdir(self.scratch)} {files[:4]}")
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.shared and os.path.exists(self.shared):
            wrong.append(f"left {self.shared}: {os.listdir(self.shared)}")
        return wrong


def check_resume(o, folder, layout, whole, other):
    """The newest checkpoint is whole, and the run goes on to its end."""
    wrong = []
    steps = sorted(os.listdir(folder + "/checkpoints")) if os.path.isdir(folder + "/checkpoints") else []
    done = [s for s in steps if re.fullmatch(r"step-\d+", s)]
    before = losses(folder + "/log.jsonl")
    words = OTHER[layout] if other else LAYOUTS[layout]
    engine = [] if random.random() < 0.5 else ["comm.engine=thread"]
    got = subprocess.run([o.haggle] + BASE + words + engine + ["run.dir=" + folder, "comm.timeout=60s"],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if got.returncode != 0:
        return [f"resume {words}: status {got.returncode}: {got.stderr[-600:]}"]
    if re.search(r"set aside|does not verify", got.stderr):
        wrong.append("a checkpoint was not whole: " + got.stderr[-500:])
    # A checkpoint is durable before the next step is logged.
    newest = max(before, default=0)
    least = max(0, (newest - 1) // 2 * 2)
    if least > 0 and (not done or int(done[-1].split("-")[1]) < least):
        wrong.append(f"the log has step {newest}, and the newest checkpoint is {done[-1:]}")
    after = losses(folder + "/log.jsonl")
    if sorted(after) != list(range(1, STEPS + 1)):
        wrong.append(f"steps {sorted(after)} after the resume")
    if not other and after != whole:
        bad = [s for s in whole if after.get(s) != whole[s]]
        wrong.append(f"other losses than an undisturbed run at steps {bad}")
    if other:
        first = int(done[-1].split("-")[1]) if done else 0
        bad = [s for s in whole if s in after and abs(after[s][0] / whole[s][0] - 1) > 1e-4]
        if bad:
            wrong.append(f"another layout from step {first}: losses differ at {bad}")
    return wrong


def say(text):
    print(text, flush=True)


def one(o, kind, phase, layout, target, step, delay, whole, worst):
    folder = f"run-{Run.number + 1}"
    run = Run(o, LAYOUTS[layout], folder)
    where = f"{kind} of {target} in {phase} {step}+{delay:.3f} ({' '.join(LAYOUTS[layout])}, {folder})"
    alive = run.wait_for(phase, step)
    time.sleep(delay)
    ranks = run.ranks()
    pid = run.process.pid if target == "launcher" else ranks.get(target)
    alive = alive and run.process.poll() is None and pid is not None
    wrong = []
    hit = time.time()
    if alive:
        try:
            if kind == "kill":
                os.kill(pid, signal.SIGKILL)
            elif kind == "stop":
                os.kill(pid, signal.SIGSTOP)
            elif kind == "ctrl-c":
                os.killpg(run.process.pid, signal.SIGINT)
            else:  # a storm
                for _ in range(random.randint(2, 6)):
                    os.killpg(run.process.pid, random.choice([signal.SIGINT, signal.SIGTERM]))
                    time.sleep(random.random() * 0.05)
        except OSError:
            alive = False
    limit = {"kill": KILL_S, "stop": STOP_S}.get(kind, KILL_S)
    end = run.finish(limit + 10)
    took, status, text = end - hit, run.process.returncode, run.said()
    complete = len(losses(folder + "/log.jsonl")) == STEPS
    if status is None:
        wrong.append(f"does not end: {text[-300:]}")
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        for p in marked(run.mark):
            try:
                os.kill(p, signal.SIGKILL)
            except OSError:
                pass
    elif not alive:
        if status != 0:
            wrong.append(f"a run that was not disturbed: status {status}: {text[-300:]}")
    elif took > limit:
        wrong.append(f"took {took:.1f} s, at most {limit}: {text[-300:]}")
    if alive and status is not None:
        key = (kind, "rank 0" if target == 0 else "launcher" if target == "launcher" else "others")
        worst.setdefault(key, []).append(took)
        sentences = re.findall(r"^haggle train: (.*)$", text, re.M)
        name = f"rank {target}"
        if kind in ("kill", "stop") and target != "launcher":
            gone = rf"{name} has ended without a word \(killed\?\); it was last {DOING}"
            still = (rf"missing: .*{name} \((?:has not answered for [\d.]+ s: stopped, or its machine is gone; )?last "
                     rf"{DOING}\).*{name} is stopped \(process {pid}\)")
            good = [gone if kind == "kill" else still]
            if phase == "start" or (phase == "any" and step < 15):  # before the ranks know of each other
                good += [rf"{name} was killed or has crashed", rf"{name} is stopped \(process {pid}\)",
                         rf"{name} has not started", rf"{name} has ended \(process {pid}\)"]
            if complete:
                good += [rf"{name} was killed or has crashed",
                         rf"did not end together.*{name} is stopped \(process {pid}\)"]
            if complete and status == 0 and not sentences:
                pass  # its work was done
            elif len(sentences) != 1 or not any(re.search(g, sentences[0]) for g in good):
                wrong.append(f"says {sentences}")
            elif status != 1:
                wrong.append(f"status {status}: {sentences}")
        elif kind == "ctrl-c":
            # 130: while it only plans, there is nothing to save
            if status not in (75, 130) and not (complete and status == 0):
                wrong.append(f"status {status}: {text[-300:]}")
            if status == 75 and (len(sentences) != 1 or not re.search("saved|before the first step", sentences[0])):
                wrong.append(f"says {sentences}")
        elif kind == "storm" and status not in (75, 130, 143, 0):
            wrong.append(f"status {status}: {text[-300:]}")
    wrong += run.clean_up()
    wrong += check_resume(o, folder, layout, whole[layout], random.random() < o.other)
    if wrong:
        say(f"{where}: {took:.1f} s, status {status}")
        for w in wrong:
            say("    " + w)
        say("    | " + "\n    | ".join(text.splitlines()[-4:]))
    elif o.verbose:
        last = [t for t in text.splitlines() if t.startswith("haggle train:")][-1:]
        say(f"{where}: {took:.1f} s, status {status}, fine {last}")
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(wrong), alive


def main():
    p = argparse.ArgumentParser()
    p.add_argument("haggle")
    p.add_argument("--kills", type=int, default=3)
    p.add_argument("--stops", type=int, default=2)
    p.add_argument("--signals", type=int, default=2)
    p.add_argument("--other", type=float, default=0.3, help="how often another layout goes on")
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--phase", choices=PHASES)
    p.add_argument("--verbose", action="store_true")
    o = p.parse_args()
    random.seed(o.seed)
    whole = {}
    worst, failed, hits = {}, 0, 0
    plan = ["kill"] * o.kills + ["stop"] * o.stops + ["ctrl-c", "storm"] * (o.signals // 2)
    phases = random.sample(PHASES, len(PHASES))
    for i, kind in enumerate(plan):
        layout = random.randrange(len(LAYOUTS))
        if layout not in whole:
            folder = f"whole-{layout}"
            subprocess.run([o.haggle] + BASE + LAYOUTS[layout] + ["run.dir=" + folder, "comm.engine=thread",
                           "comm.timeout=60s"], check=True, capture_output=True)
            whole[layout] = losses(folder + "/log.jsonl")
            assert len(whole[layout]) == STEPS, whole[layout]
        phase = o.phase or phases[i % len(phases)]
        target = random.choice([0, 0, RANKS - 1, 1] + (["launcher"] if kind == "kill" else []))
        bad, hit = one(o, kind, phase, layout, target, random.randint(1, STEPS - 2),
                       random.random() * (0.3 if phase == "end" else 0.05), whole, worst)
        failed += bad
        hits += hit
    for key, times in sorted(worst.items()):
        say(f"{key[0]} of {key[1]}: {len(times)} times, at most {max(times):.1f} s, median "
            f"{sorted(times)[len(times) // 2]:.1f} s")
    say(f"{len(plan)} faults, {hits} before the end of the run, {failed} wrong; --seed {o.seed}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
