# ./dev build
# shellcheck shell=bash
# shellcheck source=tools/dev/setup.sh
source tools/dev/setup.sh

cmd_build() {
  local preset=release
  while (($#)); do
    case "$1" in
      --preset)
        preset="${2:?--preset needs a name}"
        shift 2
        ;;
      *) die_usage "build: unknown option '$1'" ;;
    esac
  done
  setup_build
  build_preset "$preset"
  [[ "$preset" == release || "$preset" == ci ]] && link_into_venv
  say "Built: build/$preset"
}

# build_preset PRESET [cmake option...]
build_preset() {
  configure_preset "$@" || return
  say "Building preset $1"
  cmake --build --preset "$1" -j "$JOBS"
}

configure_preset() {
  local preset="$1"
  shift
  cmake --preset "$preset" --log-level=WARNING -DPython_EXECUTABLE="$VENV_PYTHON" "$@" >/dev/null
}

# .venv/bin/python -c "import qkv" and .venv/bin/qkv are this build.
link_into_venv() {
  local site
  site="$("$VENV_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  printf '%s\n' "$ROOT/build/release/python" >"$site/qkv-build.pth"
  ln -sfn "$ROOT/build/release/bin/qkv" "$VENV/bin/qkv"
}
