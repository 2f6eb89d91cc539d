#!/usr/bin/env bash
# install.sh [BROKER...]: brings in what the benchmark needs and the machine lacks: RabbitMQ from Debian, PerfTest from Maven.
set -eu
version=${PERFTEST_VERSION:-2.22.1}
out=${BENCH_OUT:?}
wanted=()
command -v java >/dev/null || wanted+=(openjdk-17-jdk-headless)
case " $* " in *" rabbitmq "*) [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || wanted+=(rabbitmq-server) ;; esac
if ! ls "$out/jars/perf-test-$version.jar" >/dev/null 2>&1; then command -v mvn >/dev/null || wanted+=(maven); fi
if [ ${#wanted[@]} -gt 0 ]; then
  # Debian starts a freshly installed broker; this benchmark starts its own.
  printf '#!/bin/sh\nexit 101\n' >"$out/policy-rc.d"
  if [ ! -e /usr/sbin/policy-rc.d ]; then install -m 755 "$out/policy-rc.d" /usr/sbin/policy-rc.d && trap 'rm -f /usr/sbin/policy-rc.d' EXIT; fi
  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${wanted[@]}"
fi
if ! ls "$out/jars/perf-test-$version.jar" >/dev/null 2>&1; then
  mkdir -p "$out/pom"
  cat >"$out/pom/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>leveret</groupId><artifactId>bench</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency><groupId>com.rabbitmq</groupId><artifactId>perf-test</artifactId><version>$version</version></dependency></dependencies>
</project>
POM
  (cd "$out/pom" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$out/jars")
fi
