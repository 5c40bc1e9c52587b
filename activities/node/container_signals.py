"""How all processes of a container get a signal, and have time to act on it.

`kill` of podman and docker reaches the init, which gives the signal to the one process that it has
started; and when that ends, so does the container, whatever is saving in it. A text command is run
by a shell, which dies at once. So the image's own shell sends the signal from inside. That needs
nothing of the node, which may not see these processes (docker), or may not signal them (rootless).
"""

from collections.abc import Sequence

_INSIDE = """
number=$1
[ "$PPID" = 0 ] || exit 126  # a namespace of others too: `kill -1` would reach them
field() {
    while read -r key value; do
        [ "$key" = "$2:" ] && return
    done < "/proc/$1/status"
}
state() {
    field "$1" State && case $value in [$2]*) ;; *) false ;; esac
}
has() {
    field "$1" "$2" && [ $((0x$value >> number - 1 & 1)) = 1 ]
}
first= handling= held= tries=10
for each in /proc/[0-9]*; do
    each=${each#/proc/}
    case $each in 1 | $$) continue ;; esac
    if field "$each" PPid && [ "$value" = 1 ] && [ "$each" -lt "${first:-$((each + 1))}" ]; then
        first=$each
    fi
    has "$each" SigCgt && handling="$handling $each"
done
if [ "$2" = stop ] && [ "$first" ] && [ "$handling" ] \\
    && ! has "$first" SigCgt && ! has "$first" SigIgn
then
    kill -STOP "$first" && held=1
    until [ ! "$held" ] || state "$first" TtZX || ! field "$first" State; do
        [ $((tries -= 1)) -gt 0 ] || break
        sleep 0.1 || sleep 1
    done
fi
kill "-$number" -1
if [ "$held" ]; then
    for each in $handling; do
        until state "$each" ZX || ! field "$each" State; do sleep 0.1 || sleep 1; done
    done
    kill -CONT "$first"
fi
exit 0
"""
"""Run by a shell in the container, with the number of a signal, and `stop` where it is to end.

The first process, whose end is that of the container, is held where it would die at once while
others handle the signal: it gets it with them, and acts on it once they have ended. Those that
ignore it, as the tracker of Python's multiprocessing, may wait for the end of the first. Where it
may not be held, or is not within the tries, the signal is sent all the same."""

_OUTSIDE = """
"$1" exec "$2" sh -c "$3" sh "$4" "$5" 2> /dev/null
code=$?
case $code in
    126 | 127) exec "$1" kill --signal "$4" "$2" ;;  # it has no shell
    137 | 143) exit 0 ;;  # it has ended meanwhile
esac
exit $code
"""


def signal_command(runtime: str, container: str) -> tuple[str, ...]:
    """Return the command that signals a container; the number of the signal and `stop` or `go-on`
    are to follow. It fails where the container is not there yet, and returns when the rest is
    left to the container."""
    return ("sh", "-c", _OUTSIDE, "sh", runtime, container, _INSIDE)


def with_signal(command: Sequence[str], number: int, *, stop: bool) -> list[str]:
    """Return a signal command with the number of the signal, and whether the container is to end.

    An older agent, which goes on while its package is replaced, has `RUNTIME kill --signal NAME`:
    there the number goes in before the last word.
    """
    if tuple(command[1:3]) == ("kill", "--signal"):
        return [*command[:-1], str(number), command[-1]]
    return [*command, str(number), "stop" if stop else "go-on"]
