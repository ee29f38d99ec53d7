# ./dev bench
# shellcheck shell=bash
# shellcheck source=tools/dev/build.sh
source tools/dev/build.sh

cmd_bench() {
  [[ -f benchmarks/CMakeLists.txt ]] || die "there are no benchmarks in this version"
  need_packages "${PACKAGES_BUILD[@]}" libbenchmark-dev
  setup_build
  build_preset release -DQKV_BUILD_BENCHMARKS=ON
  local program
  for program in build/release/benchmarks/bench_*; do
    [[ -f "$program" && -x "$program" ]] || continue
    say "${program##*/}"
    "$program" "$@"
  done
}
