#!/usr/bin/env bash
# Every reference set that is here, in profile exact (all must agree), profile fast with bf16 and fp8 index keys, the reference
# back end on one set, other page sizes and the shuffled index layout, and exact with each instruction set of this machine. The sets random-*, of shapes that no model has
# (tools/make_random_golden.py sets tests/golden), have too few rows to judge rounding by: exact only. Usage: tests/golden/run.sh path/to/winnow
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
winnow=$(readlink -f "$1")
passed=0 failed=0

verify() {  # description, arguments
  local what=$1 out
  shift
  if out=$("$winnow" verify "$@" 2>&1); then
    passed=$((passed + 1))
    echo "ok    $what"
  else
    failed=$((failed + 1))
    echo "FAILED $what: winnow verify $*"
    echo "$out"
  fi
}

for set in build/golden/*/ tests/golden/*/ models/winnow-tiny/; do
  set=${set%/}
  [ -f "$set/golden.safetensors" ] || continue
  name=$(basename "$set")
  verify "$name, exact" "$set" --profile exact
  [[ $name = random-* ]] || verify "$name, fast" "$set" --profile fast
done
verify "winnow-tiny, fast, fp8 index keys" models/winnow-tiny --profile fast --index-keys fp8
for isa in avx2 avx512; do
  grep -q "${isa/avx512/avx512f}" /proc/cpuinfo && verify "tiny, exact, $isa" build/golden/tiny --profile exact --kernel isa=$isa
done
verify "tiny, exact, one thread" build/golden/tiny --profile exact --threads 1
for tokens in 128 256; do
  verify "tiny, exact, pages of $tokens" build/golden/tiny --profile exact --page-size $tokens
  verify "tiny-kpool16, fast, pages of $tokens" build/golden/tiny-kpool16 --profile fast --page-size $tokens
done
verify "tiny, exact, reference back end" build/golden/tiny --profile exact --backend ref
verify "random-fused-fp8, exact, reference back end, shuffled index keys" tests/golden/random-fused-fp8 --profile exact --backend ref --index-layout shuffled
echo "$passed passed, $failed failed"
[ $failed = 0 ]
