# ./dev demo
# shellcheck shell=bash
# shellcheck source=tools/dev/build.sh
source tools/dev/build.sh

cmd_demo() {
  need_packages "${PACKAGES_BUILD[@]}"
  setup_peers
  has_torch || die "the demo compares with PyTorch, and no CPU build of it was found (see above)"
  setup_build
  configure_preset release
  if ! cmake --build --preset release --target qkv_core qkv_cli qkv_python_stage -- -n | grep -q 'no work to do'; then
    say "Building the library and its Python package (minutes, the first time)"
  fi
  cmake --build --preset release -j "$JOBS" --target qkv_core qkv_cli qkv_python_stage >/dev/null
  link_into_venv
  exec "$VENV_PYTHON" examples/demo/sentence_similarity.py "$@"
}
