# ./dev demo
# shellcheck shell=bash
# shellcheck source=tools/dev/build.sh
source tools/dev/build.sh

cmd_demo() {
  setup_peers
  setup_build
  has_torch || die "the demo compares with PyTorch, and no CPU build of it was found (see above)"
  build_preset release >/dev/null
  link_into_venv
  exec "$VENV_PYTHON" examples/demo/sentence_similarity.py "$@"
}
