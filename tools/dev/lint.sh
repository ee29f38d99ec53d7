# ./dev lint
# shellcheck shell=bash
# shellcheck source=tools/dev/build.sh
source tools/dev/build.sh

cmd_lint() {
  local fix="" tidy=""
  while (($#)); do
    case "$1" in
      --fix) fix=1 ;;
      --tidy) tidy=1 ;;
      *) die_usage "lint: unknown option '$1'" ;;
    esac
    shift
  done
  need_packages "${PACKAGES_BUILD[@]}" shellcheck git
  setup_build
  need_python lint
  local sources
  mapfile -t sources < <("$VENV_PYTHON" tools/list_files.py .h .cc .c)
  [[ -z "$fix" ]] || fix_format "${sources[@]}"
  lint_failed=()
  check clang-format "$VENV/bin/clang-format" --dry-run -Werror "${sources[@]}"
  check ruff "$VENV/bin/ruff" check .
  check ruff-format "$VENV/bin/ruff" format --check .
  check includes "$VENV_PYTHON" tools/check_includes.py
  check sizes "$VENV_PYTHON" tools/check_sizes.py
  check words "$VENV_PYTHON" tools/check_words.py
  check shellcheck shellcheck --external-sources dev .ci/run tools/dev/*.sh
  check mutations check_mutations
  check mypy check_types
  [[ -z "$tidy" ]] || check clang-tidy check_tidy
  ((${#lint_failed[@]} == 0)) || die "lint failed: ${lint_failed[*]}"
  say "Lint is clean"
}

check() {
  local name="$1"
  shift
  say "$name"
  "$@" || lint_failed+=("$name")
}

fix_format() {
  "$VENV/bin/clang-format" -i "$@"
  "$VENV/bin/ruff" check --fix --quiet . || true
  "$VENV/bin/ruff" format --quiet .
}

# Every breakage of the lists finds its place in the code.
check_mutations() { "$VENV_PYTHON" tools/mutate.py --list >/dev/null; }

# The package as it is installed, so that the generated stub of the extension is checked too.
check_types() {
  configure_preset release || return
  cmake --build --preset release -j "$JOBS" --target qkv_core_stub qkv_python_stage >/dev/null || return
  MYPYPATH="$ROOT/build/release/python" "$VENV/bin/mypy" -p qkv && "$VENV/bin/mypy" tools/*.py &&
    MYPYPATH="$ROOT/build/release/python:$ROOT/benchmarks" "$VENV/bin/mypy" -p qkv_bench
}

check_tidy() {
  need_packages clang-tidy clang
  configure_preset dev || return
  local sources
  mapfile -t sources < <("$VENV_PYTHON" tools/list_files.py .cc | grep -E '^(src|apps)/')
  printf '%s\n' "${sources[@]}" | xargs -P "$JOBS" -n 1 clang-tidy --quiet -p build/dev
}
