#!/usr/bin/env bash
# What is too long for every change. Writes its result to docs/nightly.md, which is committed with the run that made it.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
winnow=build/release/winnow
report=docs/nightly.md
failed=0

section() {  # title, command...: output under a heading, with the verdict
  local title=$1 start=$SECONDS out status
  shift
  echo "=== $title"
  out=$("$@" 2>&1)
  status=$?
  echo "$out"
  [ $status = 0 ] || failed=$((failed + 1))
  {
    echo
    echo "## $title: $([ $status = 0 ] && echo passed || echo FAILED) in $((SECONDS - start)) s"
    echo
    echo '```'
    echo "$out" | tail -40
    echo '```'
  } >>"$report"
}

{
  echo "# The last nightly run"
  echo
  echo "$(date -u +%F), commit $(git rev-parse --short HEAD), $(sed -n 's/^model name\t*: //p' /proc/cpuinfo | head -1), $(nproc) cores. Made by \`./dev nightly\`."
} >"$report"

section "Reference sets" tests/golden/run.sh $winnow
section "Skills, exact, 100 prompts each" python3 tests/skills/grade.py $winnow --profile exact --n 100
section "Skills, fast, 100 prompts each" python3 tests/skills/grade.py $winnow --profile fast --n 100
section "Skills, fast with fp8 index keys, 100 prompts each" python3 tests/skills/grade.py $winnow --profile fast --index-keys fp8 --n 100
section "lm-eval and guidellm" ./dev test tools
section "Same tokens, ${WINNOW_WORKLOADS:=1000} workloads a profile" env WINNOW_WORKLOADS="$WINNOW_WORKLOADS" WINNOW_SEED=1000 build/release/property_test --gtest_filter='*SameTokens*' --gtest_brief=1
for size in 64 128 256; do
  section "Same tokens, the small model, exact, pages of $size tokens" $winnow bench --same-tokens --profile exact --page-size $size --workloads 3
done
section "Same tokens, the small model, fast" $winnow bench --same-tokens --workloads 3
section "Planted faults" python3 tests/mutants/mutants.py
section "Thirty turns, each against a cold run" env WINNOW_REPLAY_ALL=1 build/release/property_test --gtest_filter='Replay*' --gtest_brief=1
section "Soak, ${WINNOW_SOAK_MINUTES:=30} minutes" env WINNOW_SOAK_MINUTES="$WINNOW_SOAK_MINUTES" build/release/property_test --gtest_filter='Soak*'
section "Kernels under ASan and UBSan" bash -c 'PRESET=asan ./dev build ops_test && build/asan/ops_test --gtest_brief=1'
section "Engine under TSan" bash -c 'PRESET=tsan ./dev build engine_test && build/tsan/engine_test --gtest_brief=1'
section "Fuzzing, ${FUZZ_SECONDS:-600} s a target" tests/fuzz/run.sh "${FUZZ_SECONDS:-600}"
section "Hostile requests, all of them" env WINNOW_HOSTILE=all .venv/bin/python -m pytest -q tests/clients/test_hostile.py
section "128 streams with cancels and disconnects, ${WINNOW_LOAD_SECONDS:=300} s" tests/load/load.py $winnow --seconds "$WINNOW_LOAD_SECONDS"
echo "nightly: $failed sections failed; see $report"
[ $failed = 0 ]
