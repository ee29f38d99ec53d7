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
  setup_onnx
  once bench tools/requirements/bench.txt -- install_each bench || true
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

# The library, the Python package, and what the benchmarks load; not the tests.
build_benchmarks() {
  configure_preset release -DQKV_BUILD_BENCHMARKS=ON
  say "Building"
  cmake --build --preset release -j "$JOBS" --target qkv_core qkv_core_stub qkv_cli qkv_python_stage qkv_bench
  link_into_venv
}
