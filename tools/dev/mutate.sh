# ./dev mutate
# shellcheck shell=bash
# shellcheck source=tools/dev/setup.sh
source tools/dev/setup.sh

cmd_mutate() {
  setup_test
  exec "$VENV_PYTHON" tools/mutate.py "$@"
}
