#!/usr/bin/env python3
"""A stand-in for OpenPBS on one host, where no real one is at hand: it runs jobs, and does what scripts can stumble over as
OpenPBS 23.06 was seen to do it. `toy_pbs.py install DIR` makes DIR/bin with its commands; TOY_PBS_DIR names DIR.

- `qstat -f` shows Submit_arguments without quotes and empty words, folds lines, and ends with 153 for unknown jobs, 35 for
  those that are over.
- The end of the walltime, qdel, qrerun and preemption (qrerun too) send SIGTERM to every process of the job, SIGKILL 10 s
  later.
- Before SIGTERM at the end of the walltime it writes a line into the job's output. After qdel the job's comment ends with
  "and terminated by USER", after qrerun its substate is 60.
- Its own `mpiexec` is on the job's PATH, says `pbs_version = ...` and starts nothing.
- afterok holds a job; it is deleted when the other one ends otherwise.
"""
import getopt, getpass, json, os, pathlib, re, shlex, signal, socket, subprocess, sys, time

HOME = pathlib.Path(os.environ.get("TOY_PBS_DIR", "."))
COMMANDS = ("qsub", "qstat", "qdel", "qalter", "qrerun")
KILL_DELAY = 10
OPTIONS = "a:A:c:C:e:hIj:J:k:l:m:M:N:o:p:P:q:r:S:u:v:VW:Xz"
NAMES = {"A": "Account_Name", "q": "queue", "N": "Job_Name", "j": "Join_Path", "k": "Keep_Files", "m": "Mail_Points",
         "M": "Mail_Users", "P": "project", "p": "Priority", "r": "Rerunable"}


def path(number, kind="json"):
    return HOME / f"{number}.{kind}"


def number_of(job):
    return job.split(".")[0]


def read(number):
    return json.loads(path(number).read_text())


def write(number, job):
    part = path(number, f"part.{os.getpid()}")
    part.write_text(json.dumps(job))
    part.replace(path(number))


def change(number, **values):
    write(number, read(number) | values)


def refuse(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)


def the_job(job):
    number = number_of(job)
    if not path(number).exists():
        refuse(f"{pathlib.Path(sys.argv[0]).name}: Unknown Job Id {job}", 153)
    return number


def variables(text):
    """Parses NAME=VALUE,NAME,... in which quotes and backslashes protect commas."""
    words, word, quote, i = [], "", "", 0
    while i < len(text):
        c = text[i]
        if c == "\\" and i + 1 < len(text):
            i += 1
            word += text[i]
        elif quote:
            quote, word = ("", word) if c == quote else (quote, word + c)
        elif c in "'\"":
            quote = c
        elif c == ",":
            words, word = words + [word], ""
        else:
            word += c
        i += 1
    return dict(w.split("=", 1) if "=" in w else (w, os.environ.get(w, "")) for w in words + [word] if w)


def take(job, options, resources):
    for option, value in options:
        letter = option[1]
        if letter == "l":
            for item in [value] if '"' in value or "'" in value else re.split(r",(?=[A-Za-z_]+=)", value):
                name, value = item.split("=", 1)
                resources[name] = value[1:-1] if value[:1] in ("'", '"') else value
        elif letter == "W":
            job["waits_for"] = value.removeprefix("depend=afterok:") if value.startswith("depend=") else None
        elif letter in NAMES:
            job["attributes"][NAMES[letter]] = {"y": "True", "n": "False"}.get(value, value) if letter == "r" else value


def qsub(words):
    options, rest = getopt.getopt(words, OPTIONS)
    given = dict(options)
    if "-I" in given or len(rest) != 1:
        refuse("qsub: this stand-in takes one script")
    script = pathlib.Path(rest[0])
    job = {"state": "Q", "run_count": 0, "code": None, "waits_for": None,
           "attributes": {"Job_Name": script.name, "queue": "debug", "Join_Path": "n", "Keep_Files": "n",
                          "Mail_Points": "a", "Priority": "0", "Rerunable": "True"}}
    resources = {}
    for line in script.read_text().splitlines():
        if given.get("-C", "#PBS") and line.startswith("#PBS "):
            take(job, getopt.getopt(shlex.split(line[5:]), OPTIONS)[0], resources)
        elif line and not line.startswith("#"):
            break
    take(job, options, resources)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PBS_")} if "-V" in given else {}
    environment |= variables(given.get("-v", ""))
    resources.setdefault("select", "1:ncpus=1")
    resources |= {"nodect": "1", "ncpus": "1"}
    job |= {"resources": resources, "environment": environment, "workdir": os.getcwd(),
            "arguments": " ".join(w for w in words if w)}
    number = 1
    while True:
        try:
            os.mkdir(path(number, "claim"))
            break
        except FileExistsError:
            number += 1
    path(number, "SC").write_text(script.read_text())
    write(number, job)
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if os.fork() == 0:
            supervise(number)
        os._exit(0)
    os.wait()
    print(f"{number}.toy")


def processes(session):
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(entry.parent.name)


def send(session, number):
    for process in processes(session):
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def may_start(number):
    """Waits for the job that this one depends on; returns False if this job is deleted or that one fails."""
    while True:
        job = read(number)
        if path(number, "asked").exists():
            return False
        if not job["waits_for"]:
            return True
        other = read(number_of(job["waits_for"]))
        if other["state"] == "F":
            if other["code"] == 0:
                return True
            return False
        time.sleep(0.05)


def environment_of(number, job):
    nodes = path(number, "nodes")
    nodes.write_text(f"{socket.gethostname()}\n" * 2)
    user = os.environ.get("USER", "root")
    base = {"HOME": os.environ["HOME"], "USER": user, "LOGNAME": user, "PATH": f"/usr/local/bin:/usr/bin:/bin:{HOME}/bin"}
    return base | job["environment"] | {
        "TOY_PBS_DIR": str(HOME), "OMP_NUM_THREADS": "64", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": f"{number}.toy",
        "PBS_JOBNAME": job["attributes"]["Job_Name"], "PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": job["workdir"],
        "PBS_O_QUEUE": job["attributes"]["queue"], "PBS_QUEUE": job["attributes"]["queue"]}


def supervise(number):
    if not may_start(number):
        change(number, state="F", code=271)
        return
    while True:
        job = read(number)
        change(number, state="R", run_count=job["run_count"] + 1, stime=time.time())
        output = pathlib.Path(job["workdir"]) / f"{job['attributes']['Job_Name']}.o{number}"
        with output.open("ab") as file:
            shell = subprocess.Popen(["/bin/bash", path(number, "SC")], cwd=os.environ["HOME"], stdout=file, stderr=file,
                                     env=environment_of(number, job), start_new_session=True)
        asked = watch(number, job, shell, output)
        send(shell.pid, signal.SIGKILL)
        if asked != "rerun":
            change(number, state="F", code=shell.returncode if asked is None else 271)
            return
        change(number, state="Q", rerun=False)


def watch(number, job, shell, output):
    """Waits for the end of the job's shell; returns the command (qdel, rerun) that ended the job, if any."""
    walltime = job["resources"].get("walltime")
    end = time.monotonic() + sum(int(x) * 60 ** i for i, x in enumerate(reversed(walltime.split(":")))) if walltime else None
    asked = kill_at = None
    while shell.poll() is None:
        now = time.monotonic()
        if kill_at and now > kill_at:
            send(shell.pid, signal.SIGKILL)
        elif not kill_at and (path(number, "asked").exists() or (end and now > end)):
            if path(number, "asked").exists():
                asked = path(number, "asked").read_text()
                path(number, "asked").unlink()
                change(number, **({"deleted": True} if asked == "delete" else {"rerun": True}))
            else:
                with output.open("ab") as file:
                    file.write(f"=>> PBS: job killed: walltime {int(now - end) + 1} exceeded limit {walltime}\n".encode())
            kill_at = now + KILL_DELAY
            send(shell.pid, signal.SIGTERM)
        time.sleep(0.05)
    return asked


def fold(line):
    parts = [line[:78]] + [line[i:i + 71] for i in range(78, len(line), 71)]
    return "\n\t".join(parts)


def qstat(words):
    for name in [w for w in words if not w.startswith("-")]:
        number = the_job(name)
        job = read(number)
        if job["state"] == "F":
            refuse(f"qstat: {name} Job has finished, use -x or -H to obtain historical job information", 35)
        if "-f" not in words:
            print(name, job["state"])
            continue
        lines = [f"{k} = {v}" for k, v in job["attributes"].items()]
        lines += [f"job_state = {'H' if job['waits_for'] and job['state'] == 'Q' else job['state']}",
                  f"Output_Path = {socket.gethostname()}:{job['workdir']}/{job['attributes']['Job_Name']}.o{number}"]
        lines += [f"Resource_List.{k} = {v}" for k, v in sorted(job["resources"].items())]
        if job["state"] == "R":
            lines += [f"substate = {60 if job.get('rerun') else 42}",
                      "comment = Job run on (toy:ncpus=1)" + (f" and terminated by {getpass.getuser()}@toy" if job.get("deleted") else "")]
        if "stime" in job:
            lines.append("stime = " + time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(job["stime"])))
        lines += ["Variable_List = " + ",".join(f"{k}={v}" for k, v in job["environment"].items()),
                  f"Submit_arguments = {job['arguments']}"]
        print(f"Job Id: {name}")
        print("\n".join(fold(f"    {line}") for line in lines) + "\n")


def ask(words, what):
    for name in words:
        number = the_job(name)
        if read(number)["state"] == "F":
            refuse(f"{sys.argv[0]}: Job has finished {name}", 35)
        part = path(number, f"asked.{os.getpid()}")
        part.write_text(what)
        part.replace(path(number, "asked"))


def qalter(words):
    options, names = getopt.getopt(words, OPTIONS)
    for name in names:
        job = read(the_job(name))
        if job["state"] == "F":
            refuse(f"qalter: Job has finished {name}", 35)
        take(job, options, job["resources"])
        write(number_of(name), job)


def install(folder):
    tools = pathlib.Path(folder) / "bin"
    tools.mkdir(parents=True)
    for name in COMMANDS:
        (tools / name).write_text(f"#!/bin/sh\nexec {sys.executable} {os.path.abspath(__file__)} {name} \"$@\"\n")
    (tools / "mpiexec").write_text("""#!/bin/sh
if [ "$1" = --version ]; then echo "pbs_version = 23.06.06"; else echo "no non-PBS mpiexec in PBS_O_PATH" >&2; exit 1; fi
""")
    for tool in tools.iterdir():
        tool.chmod(0o755)


if __name__ == "__main__":
    command, rest = sys.argv[1], sys.argv[2:]
    {"install": lambda w: install(w[0]), "qsub": qsub, "qstat": qstat, "qdel": lambda w: ask(w, "delete"),
     "qrerun": lambda w: ask(w, "rerun"), "qalter": qalter}[command](rest)
