# hybrid_client.py - the client's side of test_hybrid.sh. Every check is a line that says what it expected.
import glob, json, os, signal, socket, stat, subprocess, sys, threading, time

haggle = sys.argv[1]
failures = 0
BULK = ["seq=32", "batch.micro=2", "batch.accum=4", "eval.every=0", "generate.tokens=0", "threads=1",
        "sched.kind=constant", "log.every=1000"]


def check(ok, what):
    global failures
    if not ok:
        failures += 1
        print("FAIL:", what)


class Run:
    def __init__(self, name, *args, stdout=subprocess.PIPE):
        self.name = name
        self.process = subprocess.Popen([haggle, "train", "--goal", "hybrid", *BULK, "run.dir=" + name, *args],
                                        stdin=subprocess.PIPE, stdout=stdout, stderr=open(name + ".err", "w"))
        self.answers = []
        self.reader = threading.Thread(target=self.read, args=["interactive.stdin=false" in args], daemon=True)
        self.reader.start()

    def read(self, summary):  # without answers standard output has the summary
        for line in self.process.stdout or []:
            self.answers.append(line if summary else json.loads(line))

    def say(self, text):
        self.process.stdin.write(text if isinstance(text, bytes) else text.encode())
        self.process.stdin.flush()

    def wait_answers(self, n, seconds=30):
        end = time.time() + seconds
        while len(self.answers) < n and time.time() < end:
            time.sleep(0.005)
        check(len(self.answers) >= n, f"{self.name}: {len(self.answers)} answers of {n}")

    def wait_saved(self, own_step, seconds=30):  # until a checkpoint has the second model of this step
        end = time.time() + seconds
        while time.time() < end:
            for path in glob.glob(self.name + "/checkpoints/step-*[0-9]/interactive/manifest.json"):
                try:
                    if json.load(open(path))["step"] >= own_step:
                        return
                except OSError:  # an old checkpoint is being removed
                    pass
            time.sleep(0.005)
        check(False, f"{self.name}: no checkpoint of its own step {own_step}")

    def end(self, status, sig=None):
        if sig is not None:
            self.process.send_signal(sig)
        try:
            got = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            got = "a hang"
        self.reader.join(10)
        check(got == status, f"{self.name}: exit status {got}, expected {status}: " +
              open(self.name + ".err").read()[-300:])

    def log(self):
        return [json.loads(line) for line in open(self.name + "/log.jsonl")]

    def losses(self):
        return [(x["step"], x["loss"]) for x in self.log() if "event" not in x]


def connect(path, seconds=20):
    end = time.time() + seconds
    while True:
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(path)
            return s
        except OSError:
            s.close()
            if time.time() > end:
                raise
            time.sleep(0.01)


def answers_of(s, n, seconds=30):
    s.settimeout(seconds)
    data = b""
    while data.count(b"\n") < n:
        piece = s.recv(65536)
        if not piece:
            break
        data += piece
    return [json.loads(line) for line in data.splitlines()]


HELLO = '{"text": "to be or not"}'

# ---------------------------------------------------------------- standard input; the bulk is unchanged

plain = Run("plain", "steps=40")
plain.process.stdin.close()  # an end of input is no end of the run
plain.end(0)
check(plain.answers == [], "nobody asked, and something was answered")

run = Run("evaluated", "steps=40", "--json", "evaluated.json", "--respond", "1h")
for i in range(12):
    run.say('{"evaluate": %s, "id": %d}\n' % (HELLO, i))
    run.wait_answers(i + 1)
run.process.stdin.close()
run.end(0)
check([a["id"] for a in run.answers] == list(range(12)), "ids come back in order when asked one by one")
check(all(a["evaluate"] and a["tokens"] == 13 and a["loss"] > 0 for a in run.answers), "evaluations")
by_step = {}
for a in run.answers:
    by_step.setdefault(a["step"], set()).add(a["loss"])
check(all(len(x) == 1 for x in by_step.values()), "the same weights give the same loss")
check(run.losses() == plain.losses(), "evaluations changed the bulk's losses")
d = json.load(open("evaluated.json"))["requests"]
check(d["all_ms"]["answered"] == d["all_ms"]["n"] == 12 and d["budget_kept"] is True and d["evaluate_ms"]["p99_upper95"] is None,
      f"the result about requests: {d}")
check(d["evaluate_ms"]["p50_upper95"] >= d["evaluate_ms"]["p50"] > 0, "a bound of p50")
events = [x for x in run.log() if x.get("event") == "request"]
check([e["loss"] for e in events] == [a["loss"] for a in run.answers], "the log has what was answered")

# A training sample: other losses, and the same again when it comes at the same place.
run = Run("trained", "steps=30", "interactive.seq=64")
run.say('{"train": %s, "id": "t"}\n{"train": {"prompt": "a", "completion": "b"}}\n' % HELLO)
run.wait_answers(2)
run.process.stdin.close()
run.end(0)
check(run.answers[0]["train"] and run.answers[0]["lr"] > 0 and run.answers[0]["grad_norm"] > 0, "a training sample")
check(run.answers[1]["trained_tokens"] == 2, "only the completion is trained")
check(run.losses() != plain.losses()[:30], "a training sample changed nothing")
at = [x.get("kind", "step") for x in run.log() if x.get("event", "request") == "request"]
check(at.count("train") == 2 and at.index("train") > 0, "the log has the order of updates")

# ---------------------------------------------------------------- a second model

# The second model learns from training requests, the bulk model does not: its losses equal those of a run without requests.
open("second.yaml", "w").write("model: tiny\nseq: 64\nseed: 9\noptim:\n  lr: 1e-3\nsched:\n  warmup: 1\n")
SECOND = ["interactive.recipe=second.yaml"]
run = Run("second", "steps=40", *SECOND, "--json", "second.json")
for i in range(4):
    run.say('{"evaluate": %s}\n{"train": %s}\n{"train": {"prompt": "a", "completion": "b"}}\n' % (HELLO, HELLO))
    run.wait_answers(3 * i + 3)
run.say('{"evaluate": {"text": "%s"}}\n' % ("x" * 100))
run.wait_answers(13)
run.process.stdin.close()
run.end(0)
check(run.losses() == plain.losses(), "requests to a second model changed the bulk's losses")
trained = [a for a in run.answers if a.get("train")]
check([a["own_step"] for a in trained] == list(range(1, 9)), f"its own steps: {[a['own_step'] for a in trained]}")
evaluated = [a["loss"] for a in run.answers if a.get("evaluate")]
check(len(set(evaluated)) == 4 and evaluated[-1] < evaluated[0], f"it learns: {evaluated}")
check("accepted: 2 to 65" in run.answers[12].get("error", ""), f"its own length: {run.answers[12]}")
d = json.load(open("second.json"))
check(d["second_model"]["name"] == "tiny" and d["requests"]["updates"] == 8, "the result knows of it")
check(sum(d["memory"]["by_class"].values()) == d["memory"]["predicted_bytes"], "classes with the second model add up")

# Saved with the bulk's, it goes on where it was: after a kill too.
run = Run("second", "steps=1000000", "save.every=1", *SECOND)
run.say('{"train": %s}\n' % HELLO)
run.wait_answers(1)
check(run.answers[0]["own_step"] == 9, f"resumed at its own step: {run.answers[0]}")
run.wait_saved(9)
run.process.kill()
run.process.wait()
done = max(x["step"] for x in run.log() if "event" not in x)
run = Run("second", "steps=%d" % (done + 2), *SECOND)
run.say('{"train": %s}\n' % HELLO)
run.wait_answers(1)
run.process.stdin.close()
run.end(0)
check(run.answers and run.answers[0].get("own_step") == 10, f"after kill -9: {run.answers}")


def cli(*args):
    return subprocess.run([haggle, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)


out = cli("export", "second/interactive", "exported")
check(out.returncode == 0 and "step 10 of" in out.stdout, "export of it: " + out.stderr[-200:] + out.stdout[-300:])
out = cli("generate", "second/interactive", "--prompt", "to", "tokenizer=bytes", "--tokens", "3")
check(out.returncode == 0 and out.stdout.startswith("to"), "generate by it: " + out.stderr[-200:] + out.stdout[-300:])
out = cli("generate", "plain/interactive", "--prompt", "to")
check(out.returncode != 0 and "no checkpoint with a second model" in out.stderr, "none to generate: " + out.stderr[-200:])
out = cli("export", "plain/interactive", "exported-none")
check(out.returncode != 0 and "no checkpoint with a second model" in out.stderr, "none to export: " + out.stderr[-200:])
# What is saved of its recipe can be named again.
again = cli("show", "goal=hybrid", "interactive.recipe=second/interactive.yaml", *BULK)
check(again.returncode == 0 and "second model" in again.stdout, "its saved recipe: " + again.stderr[-200:])

for text, part in [("goal: hybrid\n", "goal=hybrid"), ("interactive:\n  queue: 3\n", "interactive.queue=3"),
                   ("seq: 100000\n", "positions"), ("model: nosuch\n", "nosuch"), ("device: cuda\n", "on the same device"),
                   ("precision: none\n", "precision"), ("a: [b\n", "bad.yaml")]:
    open("bad.yaml", "w").write(text)
    bad = cli("train", "--goal", "hybrid", "device=cpu", *BULK, "run.dir=bad", "steps=2", "interactive.recipe=bad.yaml")
    check(bad.returncode in (1, 2) and part in bad.stderr and not os.path.exists("bad"),
          f"refused {text!r}: {bad.returncode} {bad.stderr[-300:]}")
bad = cli("train", "--goal", "hybrid", *BULK, "run.dir=bad", "steps=2", "interactive.recipe=missing.yaml")
check(bad.returncode != 0 and "missing.yaml" in bad.stderr, "no such recipe: " + bad.stderr[-200:])
bad = cli("train", "--goal", "hybrid", *BULK, "run.dir=bad", "steps=2", *SECOND, "memory=30MiB")
check(bad.returncode == 3 and "second model 1" in bad.stderr, "over budget with it: " + bad.stderr[-400:])

# A search plans with its bytes and knows how long it takes.
tuned = [cli("tune", "--busy", "count", "--goal", "hybrid", "--respond", "1h", "--time", "1s", *BULK, "--store", "none", "--save", "none",
             "--report", "none", "--json", name, *more) for name, more in [("t1.json", []), ("t2.json", SECOND)]]
check(all(t.returncode == 0 for t in tuned), "tune: " + tuned[1].stderr[-300:])
one, two = json.load(open("t1.json")), json.load(open("t2.json"))
need = [{s["name"]: s["memory_needed_bytes"] for s in t["settings"]} for t in (one, two)]
check("second_model" not in one and two["second_model"]["answer_ms"] > 0, "tune knows of the second model")
more = two["second_model"]["bytes"]
check(more > 2**23 and need[1]["as given"] - need[0]["as given"] > 0.8 * more, f"tune plans its bytes: {more} {need}")

# ---------------------------------------------------------------- a socket

open("data.jsonl", "w").write('{"text": "one"}\n{"text": "two two"}\n')
run = Run("served", "steps=1000000", "interactive.socket=run.sock", "interactive.stdin=false", "interactive.micro=2",
          "interactive.data=data.jsonl", "interactive.queue=4")
s = connect("run.sock")
check(stat.S_IMODE(os.stat("run.sock").st_mode) == 0o600, "the socket is its user's alone")
s.sendall(b'{"evaluate": {"index": 1}, "id": 1}\n')
first = answers_of(s, 1)[0]
check(first["tokens"] == 8, f"a record by number: {first}")
s.sendall(b'{"evaluate": [{"text": "one"}, {"text": "two two"}]}\r\n\n  \n')
check(answers_of(s, 1)[0]["tokens"] == 12, "two records together")

hostile = [
    (b"garbage\n", "expected a value"), (b"{}\n", "needs"), (b'{"id":5,"evaluate":{"text":"\xff"}}\n', "UTF-8"),
    (b'{"evaluate":{"text":"%s"}}\n' % (b"x" * 100), "accepted: 2 to 33"),
    (b"x" * 200000 + b"\n", "longer than"), (b'{"evaluate":{"index":2}}\n', "0 to 1"),
    (b"\x00\x01\x02\n", "expected a value"), (b'{"evaluate":{"text":"a"},"evil":1}\n', "evil"), (b"[" * 70000 + b"\n", "longer")]
for line, part in hostile:
    s.sendall(line)
    a = answers_of(s, 1)
    check(len(a) == 1 and part in a[0].get("error", ""), f"{line[:40]}: {a}")
s.sendall(b'{"id":5,"evaluate":{"text":"\xff"}}\n')
check(answers_of(s, 1)[0].get("id") == 5, "an error knows whose it is")

# A line in pieces; a client that asks for much and reads late; one that closes its side and still gets its answers.
for piece in (b'{"eval', b'uate": {"te', b'xt": "a"}, "id": 9}', b"\n"):
    s.sendall(piece)
    time.sleep(0.02)
check(answers_of(s, 1)[0]["id"] == 9, "a line in pieces")
s.sendall(b"".join(b'{"evaluate": {"text": "a"}, "id": %d}\n' % i for i in range(100)))
time.sleep(0.3)
late = answers_of(s, 100)
check(sorted(a["id"] for a in late) == list(range(100)), "a hundred at once, read late")
s.sendall(b'{"evaluate": {"text": "a"}, "id": 1}\n{"evaluate": {"text": "a"}, "id": 2}')
s.shutdown(socket.SHUT_WR)
check([a["id"] for a in answers_of(s, 2)] == [1, 2], "half closed, and the last line has no end")
check(s.recv(1) == b"", "then it is closed")
s.close()

# Vanished clients, many of them, and too many.
for i in range(30):
    gone = connect("run.sock")
    gone.sendall(b'{"evaluate": {"text": "a"}}\n{"train": {"text": "a"}}\n{"half')
    gone.close()
many = [connect("run.sock") for i in range(16)]
for i, c in enumerate(many):
    c.sendall(b'{"evaluate": {"text": "a"}, "id": %d}\n' % i)
check([answers_of(c, 1)[0]["id"] for c in many] == list(range(16)), "sixteen clients")
extra = connect("run.sock")
check("too many" in answers_of(extra, 1)[0]["error"], "the seventeenth")
extra.close()

# A path that belongs to another program.
other = subprocess.run([haggle, "train", "--goal", "hybrid", *BULK, "run.dir=other", "steps=2", "interactive.socket=run.sock"],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True)
check(other.returncode == 2 and "is in use" in other.stderr, "a socket in use: " + other.stderr[-200:])
open("file", "w").write("mine")
other = subprocess.run([haggle, "train", "--goal", "hybrid", *BULK, "run.dir=other", "steps=2", "interactive.socket=file"],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True)
check(other.returncode == 2 and "not a socket" in other.stderr and open("file").read() == "mine", "a file is not replaced")
other = subprocess.run([haggle, "train", "--goal", "hybrid", *BULK, "run.dir=other", "steps=2", "interactive.socket=" + "x" * 120],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True)
check(other.returncode == 2 and "at most 107" in other.stderr, "a long path: " + other.stderr[-200:])
check(not os.path.exists("other"), "refused, and a folder was made")


def inside(folder):
    return {os.path.join(d, f): os.stat(os.path.join(d, f)).st_mtime_ns for d, _, fs in os.walk(folder) for f in fs}


# What was there before stays as it was.
before = inside("plain")
for path in ("run.sock", "file", "x" * 120):
    other = cli("train", "--goal", "hybrid", *BULK, "run.dir=plain", "steps=50", "resume=false", "interactive.socket=" + path)
    check(other.returncode == 2 and inside("plain") == before, f"refused for {path[:8]}, after something was written")
other = cli("train", "--goal", "hybrid", *BULK, "run.dir=other", "steps=2", "--json", "-")
check(other.returncode == 2 and "answers go to the standard output" in other.stderr and not os.path.exists("other"),
      "--json - beside answers: " + other.stderr[-200:])
other = cli("train", "--goal", "hybrid", *BULK, "run.dir=other", "steps=2", "--json", "-", "interactive.stdin=false")
check(other.returncode == 0 and json.loads(other.stdout)["requests"]["lines"] == 0, "--json - without answers there")

# SIGTERM while requests wait: every one of them gets an answer or an error.
for c in many:
    c.sendall(b'{"train": {"text": "abc"}, "id": 1}\n' * 6)
run.process.send_signal(signal.SIGTERM)
got = [answers_of(c, 6) for c in many]
check(all(len(a) == 6 for a in got), f"answers after SIGTERM: {[len(a) for a in got]}")
errors = [x["error"] for a in got for x in a if "error" in x]
check(errors and all("run ended" in x for x in errors), f"errors after SIGTERM: {errors[:3]}")
run.end(75)
check(not os.path.exists("run.sock"), "the socket is removed")

# A socket that a killed run left behind is replaced.
run = Run("killed", "steps=1000000", "interactive.socket=left.sock")
connect("left.sock").close()
run.process.kill()
run.process.wait()
check(os.path.exists("left.sock"), "kill -9 leaves it")
unread, out = os.pipe()
run = Run("after", "steps=1000000", "interactive.socket=left.sock", stdout=out)
os.close(out)
s = connect("left.sock")
s.sendall(b'{"evaluate": {"text": "a"}}\n')
check(len(answers_of(s, 1)) == 1, "a stale socket is replaced")

# A run goes on when its standard output is no longer read.
os.close(unread)
run.say(('{"evaluate": %s}\n' % HELLO) * 3)
time.sleep(0.2)
s.sendall(b'{"evaluate": {"text": "a"}}\n')
check(len(answers_of(s, 1)) == 1, "after standard output has gone")
run.end(75, signal.SIGTERM)

sys.exit(1 if failures else 0)
