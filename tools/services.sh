#!/bin/sh
# Makes sure that PostgreSQL, Redis and nginx are installed, which tests need: installs them with apt
# as root or with a sudo that asks nothing, and else ends with the line to type.
set -eu

wanted=
command -v initdb > /dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 \
    || wanted=postgresql
command -v redis-server > /dev/null 2>&1 || command -v valkey-server > /dev/null 2>&1 \
    || wanted="$wanted redis-server"
command -v nginx > /dev/null 2>&1 || [ -x /usr/sbin/nginx ] || wanted="$wanted nginx-light"
[ -n "$wanted" ] || exit 0

if [ "$(id -u)" = 0 ]; then as_root=
elif sudo -n true > /dev/null 2>&1; then as_root="sudo -n"
else as_root=no
fi
if [ "$as_root" = no ] || ! command -v apt-get > /dev/null 2>&1; then
    {
        echo "services: the tests need PostgreSQL, Redis and nginx; missing:$(printf ' %s' $wanted). Install with"
        echo "  sudo apt-get update && sudo apt-get install -y $(echo $wanted)"
        echo "or your system's own packages; initdb, redis-server and nginx have to be on PATH."
    } >&2
    exit 2
fi

echo "services: installing$(printf ' %s' $wanted)"
# One of a container starts nothing by itself; on a host with systemd, Debian starts what it installs.
export DEBIAN_FRONTEND=noninteractive
install() { $as_root apt-get install -y -qq --no-install-recommends $wanted > /dev/null; }
install 2> /dev/null || { $as_root apt-get update -qq && install; } || {
    echo "services: apt could not install$(printf ' %s' $wanted) (see above); type" >&2
    echo "  sudo apt-get update && sudo apt-get install -y $(echo $wanted)" >&2
    exit 2
}
