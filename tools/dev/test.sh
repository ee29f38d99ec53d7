# ./dev test
# shellcheck shell=bash
# shellcheck source=tools/dev/build.sh
source tools/dev/build.sh

cmd_test() {
  local kinds=()
  while (($#)); do
    case "$1" in
      --fast | --slow | --asan | --tsan | --long) kinds+=("${1#--}") ;;
      --all) kinds+=(fast asan tsan slow) ;;
      --debian)
        [[ "${2:-}" == 13 ]] || die_usage "test: --debian takes 13"
        kinds+=(debian13)
        shift
        ;;
      *) die_usage "test: unknown option '$1'" ;;
    esac
    shift
  done
  ((${#kinds[@]})) || kinds=(fast)
  # Not "run || failed": bash would then ignore errors inside.
  local kind failed=() status
  for kind in "${kinds[@]}"; do
    set +e
    (
      set -e
      "run_$kind"
    )
    status=$?
    set -e
    ((status == 0)) || failed+=("$kind")
  done
  ((${#failed[@]} == 0)) || die "tests failed: ${failed[*]}"
}

run_fast() { run_both fast "not slow and not long"; }
run_slow() { run_both slow "slow and not long"; }
run_long() { run_both long long; }
run_asan() { run_sanitized asan; }
run_tsan() { run_sanitized tsan; }

# run_both LABEL MARKERS: ctest by label, then pytest by markers; both run even if the first fails.
run_both() {
  local status=0
  setup_test
  build_preset release
  link_into_venv
  say "ctest: $1"
  ctest_labelled release "$1" || status=1
  say "pytest: $2"
  # 5: no test has these markers, which is no fault while ctest has some (and fails if it has none).
  "$VENV_PYTHON" -m pytest -q -n "$JOBS" -m "$2" || (($? == 5)) || status=1
  return "$status"
}

run_sanitized() {
  setup_build
  build_preset "$1"
  say "ctest: $1"
  ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1" UBSAN_OPTIONS="print_stacktrace=1" \
    TSAN_OPTIONS="second_deadlock_stack=1" ctest_labelled "$1" "$1"
}

ctest_labelled() {
  ctest --test-dir "build/$1" -L "^$2\$" -j "$JOBS" --output-on-failure --no-tests=error --no-label-summary
}

run_debian13() {
  # shellcheck source=tools/dev/debian.sh
  source tools/dev/debian.sh
  test_in_debian trixie
}
