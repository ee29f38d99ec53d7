# ./dev fuzz
# shellcheck shell=bash
# shellcheck source=tools/dev/build.sh
source tools/dev/build.sh

cmd_fuzz() {
  [[ $# -le 1 && "${1:-20}" =~ ^[1-9][0-9]*$ ]] || die_usage "fuzz takes a number of seconds"
  local seconds="${1:-20}"
  need_packages "${PACKAGES_BUILD[@]}" clang libclang-rt-dev
  setup_build
  build_preset fuzz
  local source name failed=()
  for source in fuzz/*_fuzz.cc; do
    name="$(basename "$source" _fuzz.cc)"
    fuzz_one "$name" "$seconds" || failed+=("$name")
  done
  ((${#failed[@]} == 0)) || die "what was found lies in build/fuzz/found; failed: ${failed[*]}"
}

# fuzz_one NAME SECONDS: from the inputs of the tree and those that earlier runs found worth keeping.
fuzz_one() {
  local name="$1" seconds="$2" log="build/fuzz/$1.log"
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/found
  say "$name: $seconds s"
  if ! UBSAN_OPTIONS="print_stacktrace=1" "build/fuzz/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 -dict="fuzz/$name.dict" \
    -artifact_prefix="build/fuzz/found/$name-" "build/fuzz/corpus/$name" "fuzz/$name" &>"$log"; then
    tail -n 60 "$log"
    return 1
  fi
  sed -n 's/^stat::number_of_executed_units: */inputs tried: /p' "$log"
}
