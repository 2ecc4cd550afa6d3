#!/usr/bin/env bash
# All that has to run on a GPU, unattended, within an hour: set-up, the tests marked gpu, the benchmarks.
#
#     bench/gpu.sh                  results in bench/gpu/<name of the GPU>: commit that folder
#     NANOGPT=DIR bench/gpu.sh      with karpathy/nanoGPT beside; DIR: a checkout of it
#     bench/gpu.sh --parts tests,training-1024             these alone, where the GPU is lent for minutes
#     bench/gpu.sh --device cpu --size tiny --out DIR      tries the script itself on a CPU
#
# A part that fails or outlasts its limit does not stop the others; summary.json says how each ended, and
# the exit code is 0 if all went well. Each part's output is in its .log. PY: the Python to use instead of
# .venv's.
set -u

usage() { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit "$1"; }
fail() { echo "gpu.sh: $1" >&2; exit 2; }

known="nvidia-smi machine torch tests training training-1024 sampling heads"
device=cuda size=124M out= parts=
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage 0 ;;
        --device|--size|--out|--parts) [ $# -ge 2 ] || fail "$1 needs a value" ;;
        *) fail "unknown argument $1: use --device, --size, --out or --parts" ;;
    esac
    case $1 in
        --device) device=$2 ;;
        --size) size=$2 ;;
        --out) out=$2 ;;
        --parts) parts=$2 ;;
    esac
    shift 2
done
case $device in cpu|cuda) ;; *) fail "--device $device: use cuda or cpu" ;; esac
case $size in 124M|tiny) ;; *) fail "--size $size: use 124M or tiny" ;; esac
for name in ${parts//,/ }; do
    case " $known " in *" $name "*) ;; *) fail "--parts $name: use some of ${known// /,}" ;; esac
done
case $out in ''|/*) ;; *) out=$PWD/$out ;; esac
nanogpt=${NANOGPT:+$(cd "$NANOGPT" && pwd)}
[ -z "${NANOGPT:-}" ] || [ -f "$nanogpt/model.py" ] ||
    fail "NANOGPT=$NANOGPT has no model.py: give a checkout of karpathy/nanoGPT"
cd "$(dirname "$0")/.." || exit 2
repo=$PWD
python=${PY:-.venv/bin/python}
[ -n "${PY:-}" ] || [ -e .venv/done ] || make .venv/done || fail "the set-up failed"

if [ "$device" = cuda ]; then
    name=$("$python" -c 'import torch; print(torch.cuda.get_device_name())') ||
        fail "torch sees no CUDA GPU here, see its message above"
    : "${out:=$repo/bench/gpu/$(printf %s "$name" | tr -cs 'A-Za-z0-9.' '-')}"
fi
[ -n "$out" ] || fail "give --out DIR with --device cpu"
mkdir -p "$out" || exit 2
rows=$out/.parts  # a line a part; summary.json in the end
: > "$rows"
failed=0 running=

# The places of this machine, out of what is to be committed
scrub() {
    sed -e "s|$out|OUT|g" ${nanogpt:+-e "s|$nanogpt|nanoGPT|g"} -e "s|$repo|.|g" -e "s|${HOME:-$repo}/|~/|g"
}

summary() {
    "$python" - "$rows" "$out/summary.json" "$parts" <<'END'
import json, sys
from pathlib import Path
parts = [line.rstrip("\n").split("\t") for line in open(sys.argv[1])]
keys = ("part", "exit_code", "seconds", "limit_s", "command")
parts = [dict(zip(keys, (p[0], *map(int, p[1:4]), p[4]))) for p in parts]
summary = Path(sys.argv[2])
if sys.argv[3] and summary.is_file():  # what earlier calls with other --parts left
    ran = {part["part"] for part in parts}
    parts = [part for part in json.loads(summary.read_text())["parts"] if part["part"] not in ran] + parts
summary.write_text(json.dumps({"parts": parts}, indent=1) + "\n")
END
    rm -f "$rows"
}

# part NAME LIMIT COMMAND...: runs it for at most LIMIT seconds, its output into NAME.log
part() {
    local name=$1 limit=$2 start=$SECONDS code command
    case ",${parts:-$name}," in *",$name,"*) ;; *) return ;; esac
    shift 2
    echo "== $name (at most $limit s)"
    timeout -k 10 "$limit" "$@" > "$out/$name.raw" 2>&1 &
    running=$!
    wait "$running"
    code=$?
    running=
    scrub < "$out/$name.raw" > "$out/$name.log"
    rm -f "$out/$name.raw"
    tail -n 3 "$out/$name.log"
    command=$(printf '%s' "$*" | scrub)
    printf '%s\t%d\t%d\t%d\t%s\n' "$name" "$code" "$((SECONDS - start))" "$limit" "$command" >> "$rows"
    if [ "$code" -ne 0 ]; then
        failed=1
        echo "   FAILED with exit code $code, see $out/$name.log"
    fi
}

stop() {
    if [ -n "$running" ]; then
        kill "$running"  # timeout passes it on
        wait "$running"
    fi
    summary
    echo "stopped; what was done lies in $out" >&2
    exit 130
}
trap stop INT TERM

data=data/wikitext103/gpt2
[ -f "$data/train.bin" ] && [ -f "$data/validation.bin" ] || data=random
beside=(${nanogpt:+--nanogpt "$nanogpt"})

[ "$device" = cuda ] && part nvidia-smi 30 nvidia-smi
part machine 30 sh -c 'uname -srm; lscpu; free -m'
part torch 60 "$python" -c 'import torch; print(torch.__version__, torch.__config__.show())'
part tests 900 "$python" -m pytest -m gpu -p no:cacheprovider
if [ "$size" = tiny ]; then
    part training 300 "$python" bench/training.py --device "$device" --size tiny --data random --windows 16 \
        --rounds 1 --rows --out "$out/training.json"
    part sampling 300 "$python" bench/sampling.py --device "$device" --size tiny --tokens 5 --batches 1 2 \
        --rounds 1 --out "$out/sampling.json"
    part heads 300 "$python" bench/heads.py --device "$device" --rows 16 --dim 8 --vocab 70 --rounds 1 \
        --heads sigmoid --dtypes float32 --out "$out/heads.json"
else
    part training 960 "$python" bench/training.py --device "$device" --size 124M --data "$data" --rounds 20 \
        ${beside[@]+"${beside[@]}"} --out "$out/training.json"
    part training-1024 480 "$python" bench/training.py --device "$device" --size 124M-1024 --data "$data" \
        --rounds 20 --rows ${beside[@]+"${beside[@]}"} --out "$out/training-1024.json"
    part sampling 480 "$python" bench/sampling.py --device "$device" --batches 1 64 \
        ${beside[@]+"${beside[@]}"} --out "$out/sampling.json"
    part heads 480 "$python" bench/heads.py --device "$device" --rows 8192 --dim 768 --out "$out/heads.json"
fi
[ -s "$rows" ] || { rm -f "$rows"; fail "--parts $parts: none of them runs with --device $device --size $size"; }
summary
echo "the results lie in $out"
exit "$failed"
