"""Random environments of slurm/train.sh and pbs/train.pbs in a job: fsdp-finetune, a stand-in that notes its arguments, gets
each option at last with the value of the place that wins by docs/job-scripts.md, whatever signs and folders are in it."""
import collections
import os
import shlex
import shutil
import subprocess

import programs

BATCH = 4
FOLDER = programs.temporary_folder()
counts = collections.Counter()
VARIABLES = {"LR": "lr", "SEQ_LEN": "seq-len", "BATCH_SIZE": "batch-size", "TOTAL_BATCH_SIZE": "total-batch-size", "MAX_EPOCHS": "max-epochs", "MAX_STEPS": "max-steps", "OPTIMIZER": "optimizer", "FREEZE": "freeze", "TRAIN_ONLY": "train-only", "CHILD_TUNING": "child-tuning",
             "OFFLOAD": "offload-optimizer", "SHARDING": "sharding", "PRECISION": "precision", "DEVICE": "device"}
OTHERS = ["seed", "warmup-ratio", "data-field", "chat-template", "save-interval-minutes", "lr", "seq-len", "optimizer", "max-steps", "weight-decay", "keep-last", "report-title"]
VALUES = ["1", "3e-4", "two words", "a*", "$HOME", "it's", 'say "x"', "a\\b", "[0-9]", "~", "é", "a;b", "`id`", "a=b", "model.layers.[0-9]*,x", "?", "a  b", "#x", "!", "%j", "(a|b)", "{1,2}", "<x>", "&"]
FOLDERS = ["plain", "with blank", "it's", "a$b", "par(en)", "é", "a[b]", "two  blanks", "-dash", "a&b"]
ENVIRONMENT = {"CDPATH": [".", "/tmp:/"], "SLURM_EXPORT_ENV": ["NONE", "ALL", "MODEL,DATA"], "GREP_OPTIONS": ["-v"], "POSIXLY_CORRECT": ["1"], "LC_ALL": ["C", "tr_TR.UTF-8", "C.UTF-8"], "SLURM_NTASKS": ["4"], "SLURM_NNODES": ["2"], "SLURM_JOB_GPUS": ["0,1"], "IFS": [","], "PBS_NODENUM": ["0"], "OMP_NUM_THREADS": ["3"],
               "SLURM_ARRAY_JOB_ID": [""], "name": ["x"], "options": ["--bad"], "final": ["--bad"], "given": ["--lr"], "variables": ["--bad"], "SLURM_CPUS_PER_TASK": ["2"], "GREP_COLORS": ["x"], "TMPDIR": ["/tmp"], "BASH_FUNC_cd%%": ["() {  builtin cd \"$@\" && pwd\n}"]}
PROGRAM = r"""#!/bin/sh
case "$*" in
    *--print-config*)
        while [ $# -gt 0 ]; do
            case $1 in --*=*) name=${1%%=*} value=${1#*=} ;; --print-config) name=--print value= ;; *) name=$1 value=$2; shift ;; esac
            shift
            printf '%s="%s"\n' "${name#--}" "$value"
        done
        exit ;;
    --version) exit ;;
esac
printf '%s\0' "$@" >"$NOTES/arguments"
printf '%s' "${SLURM_EXPORT_ENV-}" >"$NOTES/export"
"""


def generate(r):
    given = lambda names, count: {name: r.choice(VALUES) for name in r.sample(names, min(count, len(names)))}
    arguments = [[name, value, r.random() < 0.5, r.random() < 0.2] for name, value in given(OTHERS, r.choice([0, 1, 2, 3])).items()]
    return {"script": r.choice(["slurm/train.sh", "pbs/train.pbs"]), "arguments": arguments, "options": given(OTHERS, r.choice([0, 0, 1, 2])), "variables": {**given(sorted(VARIABLES), r.choice([0, 1, 2, 4])), **({r.choice(sorted(VARIABLES)): ""} if r.random() < 0.2 else {})},
            "environment": {name: r.choice(ENVIRONMENT[name]) for name in r.sample(sorted(ENVIRONMENT), r.choice([0, 1, 2, 4]))}, "place": r.choice(FOLDERS), "model": r.choice(FOLDERS), "data": r.choice(FOLDERS), "out": r.choice(FOLDERS + ["runs"]),
            "run": r.choice(["a", "a.b", "x-1", "", "a_b"]), "validation": r.random() < 0.3, "spooled": r.random() < 0.5, "relative": r.random() < 0.5, "plan": given(OTHERS[:6], 2) if r.random() < 0.3 else {}}


def expected(case, paths):
    """Returns the options by name as the page says: arguments, FSDP_OPT_NAME, variables, the plan, defaults."""
    has_gpu = os.path.exists("/dev/nvidiactl")
    device = case["variables"].get("DEVICE") or "auto"
    options = {"model": paths["model"], "train-data": paths["data"], "out-dir": paths["out"], "run-name": case["run"] or "train-7", "precision": "float32" if device == "cpu" or device == "auto" and not has_gpu else "bf16"}
    if case["validation"]:
        options["val-data"] = paths["data"]
    if case["plan"]:
        options["config"] = paths["plan"]
    for variable, value in case["variables"].items():
        options[VARIABLES[variable]] = value
    options = {name: value for name, value in options.items() if value != ""}
    options.update({name: value for name, value in case["options"].items() if value != ""})
    return options | {name: value for name, value, *_ in case["arguments"]}


def prepare(case, folder):
    """Makes programs, model and data; returns the paths by what they are, and the environment."""
    place = folder / case["place"] / "submit"
    for part in ("bin", "launcher", "notes"):
        (folder / case["place"] / part).mkdir(parents=True)
    place.mkdir()
    home = folder / case["place"]
    for path, text in ((home / "bin" / "fsdp-finetune", PROGRAM), (home / "bin" / "fsdp-ckpt-convert", "#!/bin/sh\n"), *((home / "launcher" / name, "#!/bin/sh\n") for name in ("scontrol", "sbatch", "qsub", "qstat", "srun", "mpiexec"))):
        path.write_text(text)
        path.chmod(0o755)
    model, data = place / f"model {case['model']}", place / f"data {case['data']}.h5"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    data.write_text("tokens")
    (home / "nodes").write_text("node1\n")
    shown = lambda path: os.path.relpath(path, place) if case["relative"] else str(path)
    paths = {"model": shown(model), "data": shown(data), "out": shown(place / f"out {case['out']}"), "plan": shown(place / "plan.ini")}
    environment = {"PATH": f"{home / 'launcher'}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "FSDP_BIN": str(home / "bin"), "FSDP_HOME": str(programs.ROOT), "FSDP_SITE": "", "NOTES": str(home / "notes"), "LAUNCHER": "env", "MODEL": paths["model"], "DATA": paths["data"], "OUT_DIR": paths["out"],
                   **({"RUN_NAME": case["run"]} if case["run"] else {}), **({"VAL_DATA": paths["data"]} if case["validation"] else {}), **case["environment"], **case["variables"], **{"FSDP_OPT_" + name.upper().replace("-", "_"): value for name, value in case["options"].items()}}
    if case["plan"]:
        (place / "plan.ini").write_text("".join(f"{name}=1\n" for name in case["plan"]))
        environment["PLAN"] = paths["plan"]
    return place, paths, environment


def run_script(case, folder):
    place, paths, environment = prepare(case, folder)
    script = programs.ROOT / case["script"]
    if case["spooled"]:  # schedulers run a copy
        script = folder / "job.sh"
        shutil.copyfile(programs.ROOT / case["script"], script)
    arguments = [word for name, value, joined, underscored in case["arguments"] for word in ([f"--{name.replace('-', '_') if underscored else name}={value}"] if joined else [f"--{name.replace('-', '_') if underscored else name}", value])]
    if case["script"].startswith("pbs"):
        environment.update(PBS_JOBID="7.server", PBS_JOBNAME="train", PBS_NODEFILE=str(place.parent / "nodes"), PBS_O_WORKDIR=str(place), **({"ARGS": shlex.join(arguments)} if arguments else {}))
        arguments = []
    else:
        environment.update(SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=str(place))
    done = subprocess.run(["bash", script, *arguments], cwd=place, env=environment, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    return done, paths, place.parent / "notes"


def parsed(words):
    """Returns the options as a list of names and values."""
    found = []
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        found.append((name.removeprefix("--").replace("_", "-"), value))
    return found


def difference(case, number):
    folder = FOLDER / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    done, paths, notes = run_script(case, folder)
    counts["runs"] += 1
    shown = f"\n{case['script']} ended with {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}"
    if not (notes / "arguments").exists():
        return f"the program is not started: {(done.stdout + done.stderr).strip().splitlines()[-1:]!a}".replace(str(folder), "") + shown
    found = [(name, value) for name, value in parsed((notes / "arguments").read_text().split("\0")[:-1]) if name not in ("time-limit", "restart-checkpoint-file")]
    wanted = expected(case, paths)
    wrong = sorted(name for name in {**wanted, **dict(found)} if wanted.get(name) != dict(found).get(name))
    if wrong:
        return f"options differ: {' '.join(wrong)}\nfound {dict(found)}\nexpected {wanted}{shown}"
    if done.returncode != 0:
        return f"exit code {done.returncode}{shown}"
    if case["script"].startswith("slurm") and (notes / "export").read_text() not in ("", "ALL"):
        return f"the ranks do not get the environment: SLURM_EXPORT_ENV is {(notes / 'export').read_text()}"
    return None


def differences(cases):
    return [difference(case, number) for number, case in enumerate(cases)]


def summary():
    return ", ".join(f"{count} {what}" for what, count in counts.items())


KNOWN = []
