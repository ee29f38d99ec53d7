# ./dev setup, and what the other verbs ask of it.
# shellcheck shell=bash

setup_build() {
  need_packages "${PACKAGES_BUILD[@]}"
  need_python build
}

setup_test() {
  need_packages "${PACKAGES_BUILD[@]}"  # before anything is downloaded
  setup_peers
  setup_build
  need_python test
  setup_onnx
}

# ONNX and its runtime: without them the tests that need them say that they were skipped. One stamp each: where pip has one
# of them, it is not asked for that one again.
setup_onnx() {
  local package
  for package in onnx onnxruntime; do
    once "$package" tools/requirements/onnx.txt -- install_one onnx "$package" || true
  done
}

has_onnx() { [[ -f "$VENV/.qkv-onnx" ]]; }
has_onnxruntime() { [[ -f "$VENV/.qkv-onnxruntime" ]]; }

# torch and what runs on it: the oracles of the tests, the demo's model. First, so that nothing else decides which torch
# comes. Without torch they are left out, and the tests that need them say that they were skipped.
setup_peers() {
  ensure_venv
  setup_torch
  if has_torch; then
    need_python peers data
  fi
}

has_torch() { [[ -f "$VENV/.qkv-torch-pip" || -f "$VENV/.qkv-torch-apt" ]]; }

setup_torch() {
  case "$(torch_source "$(base_python)")" in
    pip) once torch-pip tools/requirements/torch.txt -- install_torch_from_pip || true ;;
    apt)
      need_packages python3-torch
      once torch-apt tools/requirements/torch.txt -- check_torch
      ;;
    *) warn "no CPU build of torch for this Python; tests that need it are skipped" ;;
  esac
}

install_torch_from_pip() {
  say "Installing $(grep -v '^#' tools/requirements/torch.txt)"
  if ! "$VENV_PYTHON" -m pip install -qq --disable-pip-version-check -r tools/requirements/torch.txt; then
    warn "pip found no CPU build of torch (above). PyPI has only the CUDA build, which is never taken: name the CPU" \
      "index that PyTorch's site gives under Get Started, in PIP_EXTRA_INDEX_URL, or a folder in PIP_FIND_LINKS." \
      "Tests that need torch are skipped."
    return 1
  fi
  check_torch
}

check_torch() {
  "$VENV_PYTHON" - <<'PYTHON' || die "the torch in .venv is a CUDA build or does not work: remove .venv and start again"
import sys

import torch

sys.exit(torch.version.cuda is not None)
PYTHON
}

cmd_setup() {
  (($# == 0)) || die_usage "setup takes no options"
  setup_test
  if has_torch; then
    say "Ready: ./dev build, ./dev test, ./dev demo"
  else
    say "Ready: ./dev build, ./dev test; not ./dev demo, which needs torch (above)"
  fi
}
