"""`longshore-wait`: blocks in a job until a file of its data sets is there.

A shell script, since images have whatever they have. It reads what the node keeps of each data
set beside it: `listing`, `failed`, `complete` (activities/node/data_fetch.py).
"""

from pathlib import Path

NAME = "longshore-wait"
SCRIPT = r"""#!/bin/sh
# Waits until files or folders of the job's data sets are there.
usage='usage: longshore-wait [--timeout SECONDS] PATH...

Blocks until each PATH is there as a whole: a file or folder of a data set of this job, such as
$LONGSHORE_DATA_DIR/imagenet/val. Ends with 0; with 1 where one cannot be had, and says why; with
124 after the timeout.'
limit=
case "${1-}" in
  -h|--help) echo "$usage"; exit 0;;
  --timeout) limit=${2-}; [ $# -ge 2 ] && shift 2;;
  --timeout=*) limit=${1#--timeout=}; shift;;
esac
case "$limit" in *[!0-9]*) echo "longshore-wait: --timeout takes whole seconds" >&2; exit 64;; esac
[ $# -gt 0 ] || { echo "$usage" >&2; exit 64; }
sets=${LONGSHORE_DATA_DIR-}
[ -n "$sets" ] || { echo "longshore-wait: this job has no data that nodes fetch" >&2; exit 1; }
began=$(date +%s)

below() { # whether $2 is $1, or below it
  [ "$2" = "$1" ] || case "$2" in "$1"/*) true;; *) false;; esac
}

there() { # whether all of a data set that is at, or below, $2 is there; $1 is what is known of it
  [ -e "$1/complete" ] && [ -e "$root${2:+/$2}" ] && return 0
  [ -n "$2" ] || return 1
  some=
  while IFS= read -r path; do
    if below "$2" "$path"; then
      some=1
      [ -e "$root/$path" ] || return 1
    fi
  done < "$1/listing"
  [ -n "$some" ]
}

for given in "$@"; do
  case "$given" in /*) path=$given;; *) path=$PWD/$given;; esac
  while true; do
    case "$path" in
      *//*) path=${path%%//*}/${path#*//};;
      */./*) path=${path%%/./*}/${path#*/./};;
      */.) path=${path%.};;
      ?*/) path=${path%/};;
      *) break;;
    esac
  done
  name= rest=
  for entry in "$sets"/*; do
    real=$(readlink -f "$entry" 2>/dev/null || echo "$entry")
    for start in "$entry" "$real"; do
      if below "$start" "$path"; then
        name=${entry##*/} root=$entry rest=${path#"$start"} rest=${rest#/}
      fi
    done
  done
  if [ -z "$name" ]; then
    echo "longshore-wait: $given is in no data set of this job: they are below $sets" >&2
    exit 1
  fi
  known=$sets/.state/$name
  while ! there "$known" "$rest"; do
    if [ -n "$rest" ] && [ -e "$known/listing" ]; then
      found=
      while IFS= read -r path; do
        if below "$rest" "$path"; then found=1; break; fi
      done < "$known/listing"
      [ -n "$found" ] || { echo "longshore-wait: data set $name has no $rest" >&2; exit 1; }
    fi
    if [ -e "$known/failed" ]; then
      mark=$(printf '\037')
      while IFS="$mark" read -r path why; do
        if [ -z "$path" ] || [ -z "$rest" ] || below "$rest" "$path"; then
          echo "longshore-wait: $given cannot be had: $why" >&2
          exit 1
        fi
      done < "$known/failed"
    fi
    if [ -n "$limit" ] && [ $(( $(date +%s) - began )) -ge "$limit" ]; then
      echo "longshore-wait: $given was not there within $limit s" >&2
      exit 124
    fi
    sleep 0.2
  done
done
"""


def write_wait_script(folder: Path) -> None:
    """Put the program into a folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    file.unlink(missing_ok=True)
    file.write_text(SCRIPT)
    file.chmod(0o755)
