#!/usr/bin/env bash
# The functional, server, TLS and client tests of RabbitMQ's Java client, from its sources and its released library.
# To be run by ../run.sh, or by hand as the runners of the other suites: LABEL, NETNS, LAB, RESULTS, TLS_DIR, PHASE, RABBITMQCTL
# (the program that the tests call for rabbitmqctl) and ERLANG_NODE are theirs; CONFORMANCE is the folder of those.
#
# JAVA_CLIENT is a checkout of the public repository rabbitmq-java-client, or a bare git folder of it, with the tag of the version in
# pom.xml: the tests are in no package. JAVA_LAYERS names the client's ways to a socket that are tried, of netty (its default), nio and
# socket; JAVA_SUITES of the suites and classes of tests.
#
# Left out are the tests that measure traces (their library is in no registry) and those of a second node of RabbitMQ's own.
# shellcheck source=/dev/null
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "${CONFORMANCE:?the folder of the runners}/lib.sh"
begin java
version=$(sed -n 's/.*<client.version>\(.*\)<.*/\1/p' "$here/pom.xml")
dir=$LAB/java-client-$version
if preparing; then
  [[ -n ${JAVA_CLIENT:-} ]] || die "set JAVA_CLIENT to a checkout of rabbitmq-java-client"
  mkdir -p "$dir"
  cp "$here/pom.xml" "$dir/pom.xml"
  [[ -d $dir/lib ]] || (cd "$dir" && nice mvn -B -q dependency:copy-dependencies -DoutputDirectory=lib.new -DincludeScope=runtime && mv lib.new lib) ||
    die "maven could not get the client and the libraries of its tests"
  rm -rf "$dir/src" "$dir/classes"
  mkdir -p "$dir/classes"
  git -C "$JAVA_CLIENT" archive "v$version" src/test | tar -x -C "$dir" || die "no tag v$version in $JAVA_CLIENT"
  tests=$dir/src/test/java/com/rabbitmq/client/test
  rm "$tests/functional/MicrometerObservationCollectorMetrics.java"
  sed -i '/MicrometerObservationCollectorMetrics/d' "$tests/functional/FunctionalTestSuite.java"
  # The same class, in the library that has it and not in another one's copy.
  sed -i 's/import wiremock\.org\.apache/import org.apache/' "$tests/ssl/TlsConnectionLogging.java"
  find "$dir/src" -name '*.java' -print0 | nice xargs -0 javac -nowarn -encoding UTF-8 -d "$dir/classes" -cp "$dir/lib/*" >"$LOG" 2>&1 ||
    die "the tests do not compile: see $LOG"
  cp -r "$dir/src/test/resources/." "$dir/classes"
fi
running || exit 0
: "${TLS_DIR:?certificates}"
host=$(hostname)
# Some read files of their sources by a relative path.
cd "$dir" || die "$dir is gone"
# The tests of TLS one by one: where a client waits for ever in one of them, the others' results are not lost with it.
tls=(UnverifiedConnection VerifiedConnection BadVerifiedConnection ConnectionFactoryDefaultTlsVersion NioTlsUnverifiedConnection
  HostnameVerification TlsConnectionLogging SslContextFactoryTest)
suites=(ClientTestSuite functional.FunctionalTestSuite server.ServerTestSuite "${tls[@]/#/ssl.}")
[[ -z ${JAVA_SUITES:-} ]] || read -ra suites <<<"$JAVA_SUITES"
for layer in ${JAVA_LAYERS:-netty}; do
  for suite in "${suites[@]}"; do
    limit=${SUITE_TIMEOUT:-1200}
    [[ $suite != ssl.* ]] || limit=200
    reports=$dir/reports.$LABEL/$layer.$suite
    rm -rf "$reports"
    # A test that waits longer than its client would hangs.
    bounded "$limit" java -Xshare:off -Xmx1g -cp "$dir/classes:$dir/lib/*" \
      -Drabbitmqctl.bin="${RABBITMQCTL:-false}" -Dtest-broker.A.nodename="$ERLANG_NODE" -Dio.layer="$layer" \
      -Dca.certificate="$TLS_DIR/ca_certificate.pem" -Dclient.certificate="$TLS_DIR/client_${host}_certificate.pem" \
      org.junit.platform.console.ConsoleLauncher execute --disable-banner --disable-ansi-colors --details=tree \
      --config junit.jupiter.execution.timeout.default=180s --reports-dir "$reports" \
      --select-class "com.rabbitmq.client.test.$suite" >>"$LOG" 2>&1
    [[ -d $reports ]] && lines junit "$reports"
  done
done
finish
