#!/usr/bin/env bash
# Checks what is packed without building it: scripts, the unit, the chart. A tool that is not here is said and passed over, but for helm,
# which go builds once into target/tools where there is a go (a minute or two); HELM names another.
set -uo pipefail
cd "$(dirname "$0")"
failed=0
check() { local what=$1; shift; if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi; }
for script in *.sh debian/build.sh debian/postinst debian/prerm debian/postrm container/build.sh container/try.sh ../tests/migration/run.sh; do
  check "$script is sound" bash -n "$script"
done
if command -v systemd-analyze > /dev/null; then
  # The binary need not be installed here.
  unit=$(mktemp -d)/leveret.service
  sed "s|^ExecStart=.*|ExecStart=/bin/true|" systemd/leveret.service > "$unit"
  check "the unit has no mistake" systemd-analyze verify --man=no "$unit"
else
  echo "not checked: the unit (systemd-analyze is not here)"
fi
helm=${HELM:-helm} version=v3.22.0
if ! command -v "$helm" > /dev/null; then
  tools=$(cd .. && pwd)/target/tools
  helm=$tools/helm
  if [ ! -x "$helm" ] && command -v go > /dev/null; then
    echo "building helm $version"
    GOBIN=$tools GOFLAGS=-mod=mod go install "helm.sh/helm/v3/cmd/helm@$version" || failed=1
  fi
fi
if command -v "$helm" > /dev/null; then
  lint() { "$helm" lint --strict --kube-version 1.30.0 helm/leveret "$@" > /dev/null; }
  manifest() { "$helm" template --kube-version 1.30.0 broker helm/leveret "$@"; }
  check "the chart is sound" lint
  check "with everything on" lint --set replicas=5,tls.secretName=a,cluster.tls.secretName=b,definitionsSecret=c,serviceMonitor.enabled=true
  check "one node alone" lint --set replicas=1,persistence.enabled=false
  refused() { ! "$helm" template --kube-version 1.30.0 broker helm/leveret "$@" > /dev/null 2>&1; }
  check "an even number of nodes is refused" refused --set replicas=2
  check "a value that is misspelt is refused" refused --set replica=3
  has() { manifest | grep -qF -- "$1"; }
  check "pods find each other by name" has 'broker-leveret-0.broker-leveret-nodes.default.svc.cluster.local:25672'
  check "pods are not root" has 'runAsNonRoot: true'
  check "names are there before pods are ready" has 'publishNotReadyAddresses: true'
else
  echo "not checked: the chart (neither helm nor go is here)"
fi
exit $failed
