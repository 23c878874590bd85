#!/bin/sh
# open_mpi.sh MPIRUN ARGUMENTS...: runs mpirun of Open MPI so that a run is saved before it ends. After SIGTERM or Ctrl-C
# mpirun ends the job by itself: version 4 kills the ranks after 2 s, version 5 after half a second, and both return 1. But
# it passes SIGUSR1 on, after which the ranks save and mpirun returns their code, 85. So the first signal becomes SIGUSR1; a
# second one reaches mpirun as it is. In a session of its own, mpirun gets neither Ctrl-C nor a scheduler's signal directly.
# ---
# Waits for the end of a process that this shell started, and leaves its exit code in $code.
await() {
    while :; do
        code=0
        wait "$1" || code=$?
        kill -0 "$1" 2>/dev/null || break # otherwise a signal interrupted wait
    done
    # The shell may have taken note of the end while a signal interrupted it: then it still knows the code.
    again=0
    wait "$1" 2>/dev/null || again=$?
    if [ "$again" != 127 ]; then code=$again; fi
}

open_mpi() {
    if ! command -v setsid >/dev/null; then exec "$@"; fi
    exec 3<&0
    setsid "$@" <&3 3<&- &
    job=$!
    signalled=''
    for signal in INT TERM HUP; do
        # shellcheck disable=SC2064 # expand the process id now
        trap "if [ -z \"\$signalled\" ]; then signalled=1; kill -USR1 $job; else kill -TERM $job; fi 2>/dev/null" "$signal"
    done
    # shellcheck disable=SC2064
    trap "kill -USR1 $job 2>/dev/null" USR1
    await "$job"
    exit "$code"
}
# --- end
open_mpi "$@"
