# shellcheck shell=bash disable=SC2034 # some variables are for those who source this
# lib.sh - shared by the tests of the program. Source it as: . lib.sh "$@". The arguments are the
# program, the build folder and the source tree (CMake passes them).
#
# Each test works in a separate folder with a separate cache, and ends with `finish`.
set -u
haggle=$(realpath "${1:?usage: $0 HAGGLE [BUILD] [SOURCE]}")
build=$(realpath "${2:-$(dirname "$haggle")}")
source_tree=$(realpath "${3:-$(dirname "${BASH_SOURCE[0]}")/../..}")
here=$(mktemp -d) || exit 1
trap 'rm -rf "$here"' EXIT
cd "$here" || exit 1
export XDG_CACHE_HOME=$here/cache NO_COLOR=1
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

# run STATUS WHAT ARGUMENT...: runs haggle, keeps its streams in ./out and ./err, checks the exit
# status.
run() {
    local wanted=$1 what=$2 got
    shift 2
    timeout 60 "$haggle" "$@" >out 2>err
    got=$?
    [ $got -eq "$wanted" ] && return
    fail "$what: exit status $got, expected $wanted"
    sed 's/^/    /' err | tail -5
}

# says FILE TEXT WHAT: checks that FILE contains TEXT.
says() {
    grep -qF -- "$2" "$1" && return
    fail "$3: '$2' is not in $1:"
    sed 's/^/    /' "$1" | tail -8
}

# json FILE EXPRESSION WHAT: checks that FILE is JSON and that a Python expression about it (named
# d) is true. Without Python only the first character is checked.
json() {
    if command -v python3 >/dev/null; then
        python3 - "$1" "$2" <<'PYTHON' || fail "$3: $2"
import json, sys
d = json.load(open(sys.argv[1]))
value = eval(sys.argv[2])
if not value:
    print("    is", repr(value))
    sys.exit(1)
PYTHON
    else
        case $(head -c 1 "$1") in # an object or an array; without Python no more can be checked
        '{' | '[') ;;
        *) fail "$3: no JSON" ;;
        esac
    fi
}

finish() {
    [ $failures -eq 0 ] && echo "passed" && exit 0
    echo "$failures failures"
    exit 1
}
