# Sourced by ./dev: output, system packages, the virtual environment.
# shellcheck shell=bash disable=SC2034

readonly VENV="$ROOT/.venv"
readonly VENV_PYTHON="$VENV/bin/python"
JOBS="${QKV_JOBS:-$(nproc)}"
readonly JOBS

say() { printf '\n== %s\n' "$*"; }
warn() { printf 'dev: %s\n' "$*" >&2; }
die() {
  warn "$*"
  exit 1
}
die_usage() {
  warn "$*"
  exit 2
}

# --- system packages ------------------------------------------------------------------------------------------------

# A verb asks for all that it needs at once, so that what is missing is named in one message.
readonly PACKAGES_PYTHON=(python3 python3-dev python3-venv)
readonly PACKAGES_BUILD=("${PACKAGES_PYTHON[@]}" g++ cmake ninja-build pkg-config libhwy-dev libfmt-dev libcli11-dev
  nlohmann-json3-dev libgtest-dev libgmock-dev ccache)

is_installed() { [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

# need_packages NAME...: installs what is missing, or names it and exits.
need_packages() {
  local missing=() name
  for name in "$@"; do
    is_installed "$name" || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || die "needs these Debian packages, or what your system calls them: ${missing[*]}"
  ((EUID == 0)) || die "missing packages; as root: apt-get install ${missing[*]}"
  say "Installing ${missing[*]}"
  apt_get update -qq
  apt_get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 "$@"; }

# --- the virtual environment ----------------------------------------------------------------------------------------

# The system's Python first: the one whose headers and packages the distribution keeps together.
base_python() {
  local python
  for python in /usr/bin/python3 python3; do
    if command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      echo "$python"
      return
    fi
  done
  die "needs Python 3.11 or later"
}

python_minor() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# Where torch comes from: "pip" (3.11), "apt" (Debian's own package, from 2.6 on), or "" for nowhere.
torch_source() {
  local python="$1"
  if [[ "$(python_minor "$python")" == 3.11 ]]; then
    echo pip
  elif [[ "$python" == /usr/bin/python3 ]] && apt_candidate_at_least python3-torch 2.6; then
    echo apt
  fi
}

apt_candidate_at_least() {
  local candidate
  candidate="$(apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: //p')"
  [[ -n "$candidate" && "$candidate" != "(none)" ]] && dpkg --compare-versions "$candidate" ge "$2"
}

ensure_venv() {
  need_packages "${PACKAGES_PYTHON[@]}"
  local python options=()
  python="$(base_python)"
  if [[ -x "$VENV_PYTHON" ]] && "$VENV_PYTHON" -c 'import sys' 2>/dev/null; then
    return
  fi
  [[ "$(torch_source "$python")" == apt ]] && options+=(--system-site-packages)
  say "Making .venv with $("$python" --version)"
  "$python" -m venv --clear ${options[@]+"${options[@]}"} "$VENV"
}

# once NAME FILE... -- COMMAND...: runs COMMAND unless it has run with FILEs of the same content in this .venv.
once() {
  local name="$1" files=() stamp wanted
  shift
  while [[ "$1" != -- ]]; do
    files+=("$1")
    shift
  done
  shift
  stamp="$VENV/.qkv-$name"
  wanted="$(sha256sum "${files[@]}")"
  [[ -f "$stamp" && "$(<"$stamp")" == "$wanted" ]] && return
  "$@" || return
  printf '%s\n' "$wanted" >"$stamp"
}

pip_install() {
  local constraints=()
  [[ -f "$VENV/.qkv-torch-pip" ]] && constraints=(-c tools/requirements/torch.txt)
  "$VENV_PYTHON" -m pip install -qq --disable-pip-version-check ${constraints[@]+"${constraints[@]}"} "$@"
}

# need_python GROUP...: the requirement lists tools/requirements/GROUP.txt.
need_python() {
  ensure_venv
  local group
  for group in "$@"; do
    once "$group" "tools/requirements/$group.txt" -- install_requirements "$group"
  done
}

install_requirements() {
  local file="tools/requirements/$1.txt" options=()
  [[ "$1" == data ]] && options=(--no-deps)
  say "Installing Python packages: $(grep -v '^#' "$file" | paste -sd' ')"
  pip_install ${options[@]+"${options[@]}"} -r "$file"
}

# install_one GROUP PACKAGE: the line of a list that pins one package.
install_one() {
  local line
  line="$(grep "^$2[=<>]" "tools/requirements/$1.txt")"
  say "Installing $line, if there is a wheel"
  pip_install "$line" || {
    warn "$line could not be installed: what needs it is left out"
    return 1
  }
}

# install_each GROUP: a package that pip has no wheel of is left out; the rest are tried all the same.
install_each() {
  local file="tools/requirements/$1.txt" line status=0
  say "Installing Python packages, as far as there are wheels: $(grep -v '^#' "$file" | paste -sd' ')"
  while IFS= read -r line; do
    pip_install "$line" || {
      warn "$line could not be installed: what needs it is left out"
      status=1
    }
  done < <(grep -v '^#' "$file")
  return "$status"
}
