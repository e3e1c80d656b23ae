#!/usr/bin/env bash
# Builds every libFuzzer target with ASan and UBSan and runs each for SECONDS from its committed corpus.
# Usage: tests/fuzz/run.sh [SECONDS]; a crash leaves its input in build/fuzz/findings and fails the run.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
seconds=${1:-60}
jobs=$(nproc)
cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 \
  -DWINNOW_FUZZ=ON -DWINNOW_TESTS=OFF >/dev/null
targets=()
for source in tests/fuzz/fuzz_*.cpp; do targets+=("$(basename "$source" .cpp)"); done
cmake --build build/fuzz -j "$jobs" --target "${targets[@]}"
mkdir -p build/fuzz/findings build/fuzz/corpus

fuzz_one() {  # target
  local corpus=build/fuzz/corpus/$1 seeds=tests/fuzz/seeds/$1 program
  program=$(find build/fuzz -name "$1" -type f -perm -u+x | head -1)
  mkdir -p "$corpus"
  [ -d "$seeds" ] || seeds=
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -artifact_prefix="build/fuzz/findings/$1-" -print_final_stats=1 "$corpus" $seeds >"build/fuzz/$1.log" 2>&1; then
    echo "ok    $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$1.log") inputs"
  else
    echo "FAILED $1: see build/fuzz/$1.log"
    tail -25 "build/fuzz/$1.log"
    return 1
  fi
}
export -f fuzz_one
export seconds
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz_one {}'
