# ./dev test --debian 13: the tests inside a fresh Debian of another release.
# shellcheck shell=bash

# test_in_debian SUITE: makes a bare root file system with the host's own apt settings (cached under build/), copies the
# tree into it and runs ./dev test there as a newcomer would.
test_in_debian() {
  local suite="$1"
  ((EUID == 0)) || die "a Debian of its own needs root"
  need_packages mmdebstrap rsync
  local base="$ROOT/build/debian-$suite"
  [[ -f "$base/.complete" ]] || make_debian "$suite" "$base"
  say "Copying the tree into $base"
  mkdir -p "$base/home/qkv"
  rsync -a --delete --exclude /build --exclude /.venv --exclude .git "$ROOT/" "$base/home/qkv/"
  carry_settings "$base"
  say "./dev test in Debian $suite"
  in_debian "$base" /home/qkv/dev test
}

make_debian() {
  local suite="$1" base="$2" sources
  say "Making a bare Debian $suite in $base"
  rm -rf "$base"
  mkdir -p "$base"
  sources="$(mirror_of_host)"
  [[ -n "$sources" ]] || die "no Debian mirror is named in /etc/apt"
  local options=()
  while IFS= read -r option; do options+=("--aptopt=$option"); done < <(apt_settings)
  mmdebstrap --mode=root --variant=minbase --include=ca-certificates ${options[@]+"${options[@]}"} \
    "$suite" "$base" "$sources"
  touch "$base/.complete"
}

# The URI of the host's first Debian archive, from either form of sources list.
mirror_of_host() {
  {
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed -n 's/^URIs: *\([^ ]*\).*/\1/p'
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
      sed -n 's/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p'
  } | sed -n '/\/debian\/\?$/{p;q}' || true
}

# Proxies and certificates that apt is told to use here.
apt_settings() {
  apt-config dump --format '%f "%v";%n' | grep -E '^Acquire::(http|https)(::[^ ]*)?(::)?(Proxy|CaInfo|Verify-Peer)[^ ]* ' || true
}

# What a newcomer's machine would have: certificates, pip's settings and the folders of wheels that they name, proxies.
carry_settings() {
  local base="$1" path
  for path in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/xdg/pip /etc/ssl/certs/ca-certificates.crt \
    /usr/local/share/ca-certificates; do
    [[ -e "$path" ]] || continue
    mkdir -p "$base$(dirname "$path")"
    rsync -aL "$path" "$base$(dirname "$path")/"
  done
  apt_settings >"$base/etc/apt/apt.conf.d/99host"
}

# The environment but for what belongs to the host's own Python and shell.
in_debian() {
  local base="$1" status=0
  shift
  local keep=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "TERM=${TERM:-dumb}") name
  while IFS= read -r name; do
    keep+=("$name=${!name}")
  done < <(compgen -e | grep -iE '^(https?_proxy|no_proxy|ssl_cert_file|requests_ca_bundle|pip_.*|qkv_jobs)$')
  mount --bind /proc "$base/proc"
  mount --bind /dev "$base/dev"
  mount --bind /dev/pts "$base/dev/pts"
  env -i "${keep[@]}" chroot "$base" "$@" || status=$?
  umount "$base/dev/pts" "$base/dev" "$base/proc"
  return "$status"
}
