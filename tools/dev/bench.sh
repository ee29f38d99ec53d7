# ./dev bench
# shellcheck shell=bash
# shellcheck source=tools/dev/build.sh
source tools/dev/build.sh

cmd_bench() {
  if ! bench_measures "$@"; then
    PYTHONPATH="$ROOT/benchmarks" exec "$(base_python)" -m qkv_bench "$@"
  fi
  need_packages "${PACKAGES_BUILD[@]}"
  setup_peers
  setup_build
  once bench tools/requirements/bench.txt -- install_bench_peers || true
  build_benchmarks
  PYTHONPATH="$ROOT/benchmarks:$ROOT/build/release/python" exec "$VENV_PYTHON" -m qkv_bench "$@"
}

# bench_measures ARG...: whether it needs the library; help and reports do not.
bench_measures() {
  local argument
  for argument in "$@"; do
    case "$argument" in
      -h | --help | report) return 1 ;;
    esac
  done
  (($#))
}

# A peer that pip has no wheel of is left out; the rest are tried all the same.
install_bench_peers() {
  say "Installing what the benchmarks compare with: $(grep -v '^#' tools/requirements/bench.txt | paste -sd' ')"
  local line status=0
  while IFS= read -r line; do
    pip_install "$line" || {
      warn "$line could not be installed: the benchmarks leave it out"
      status=1
    }
  done < <(grep -v '^#' tools/requirements/bench.txt)
  return "$status"
}

# The library, the Python package, and what the benchmarks load; not the tests.
build_benchmarks() {
  configure_preset release -DQKV_BUILD_BENCHMARKS=ON
  say "Building"
  cmake --build --preset release -j "$JOBS" --target qkv_core qkv_core_stub qkv_cli qkv_python_stage qkv_bench
  link_into_venv
}
