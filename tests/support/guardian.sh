# Runs servers for the process at the other end of standard input. When that process is gone,
# however it went, ends exactly these servers and removes their folder.
#
# One command a line, one answer a line:
#   start NAME   runs FOLDER/NAME.sh             -> pid
#   kill NAME    SIGKILL, and waits              -> exit code
#   stop NAME    SIGTERM, SIGKILL after a minute     -> exit code
# The first line of output is FOLDER.

# A server that gets a broken pipe or a signal must not end the guardian with it.
trap '' PIPE
trap : HUP INT QUIT TERM

folder=$(mktemp -d "${PACED_TEST_DATA:-${TMPDIR:-/tmp}}/paced-servers-XXXXXXXX") || exit 1
running=""

is_up() { # is_up PID: a child that has ended is a zombie until it is waited for, or gone
    read -r _ _ state _ <"/proc/$1/stat" 2>/dev/null && [ "$state" != Z ]
}

forget() { # forget NAME
    rest=""
    for each in $running; do
        [ "$each" = "$1" ] || rest="$rest $each"
    done
    running=$rest
}

end_all() {
    for name in $running; do
        eval "pid=\$pid_$name"
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    # A helper of a killed server may still be writing.
    tries=50
    until rm -rf "$folder" 2>/dev/null || [ "$tries" = 0 ]; do
        sleep 0.2
        tries=$((tries - 1))
    done
}

echo "$folder"
while :; do
    read -r verb name
    code=$?
    [ "$code" -gt 128 ] && continue # a signal
    [ "$code" -ne 0 ] && break      # end of file
    case $verb in
    start)
        sh "$folder/$name.sh" </dev/null >>"$folder/$name.log" 2>&1 &
        eval "pid_$name=$!"
        forget "$name"
        running="$name $running"
        echo $!
        ;;
    kill | stop)
        eval "pid=\$pid_$name"
        if [ "$verb" = stop ]; then
            kill -TERM "$pid" 2>/dev/null
            tries=600
            while [ "$tries" -gt 0 ] && is_up "$pid"; do
                sleep 0.1
                tries=$((tries - 1))
            done
        fi
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        code=$?
        forget "$name"
        echo "$code"
        ;;
    esac
done
end_all
