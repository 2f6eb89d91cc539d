package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"

	"torture/cluster"
)

func report(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var total Total
	if err := json.Unmarshal(text, &total); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Print(Table(&total))
	return nil
}

// Table says what a run showed, as a page has it.
func Table(t *Total) string {
	var out strings.Builder
	c := t.Counts
	faults := 0
	for _, times := range t.Faults {
		faults += times
	}
	fmt.Fprintf(&out, "%s, seed %d, %.0f s, %d rounds, %d faults\n\n", t.Broker, t.Seed, t.Seconds, t.Rounds, faults)
	fmt.Fprintf(&out, "| published | confirmed | refused | no answer | delivered | redelivered | acks proven | again after an unproven ack | operations on the topology |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	fmt.Fprintf(&out, "| %d | %d | %d | %d | %d | %d | %d | %d | %d |\n\n", c.Sent, c.Confirmed, c.Refused, c.Unknown, c.Delivered, c.Redelivered, c.Proven, c.AckedAgain, c.Operations)
	kinds := make([]string, 0, len(t.Totals))
	for kind, times := range t.Totals {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, times))
	}
	sort.Strings(kinds)
	if len(kinds) == 0 {
		kinds = []string{"none"}
	}
	fmt.Fprintf(&out, "Broken promises: %s. Consumers cancelled: %d. Nodes that ended by themselves: %d, that had to be started by hand: %d. Rounds given up: %d.\n\n",
		strings.Join(kinds, ", "), c.Cancelled, len(t.Ended), len(t.ByHand), len(t.GivenUp))
	fmt.Fprintf(&out, "| fault | times | nobody is confirmed anything, longest s | publisher on another node, p50 | p99 | max | on that node, max | all nodes serve again after s, max |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, fault := range cluster.Faults {
		p := t.Pauses[fault.Class]
		if p == nil {
			continue
		}
		elsewhere := fmt.Sprintf("%.2f | %.2f | %.2f", quantile(p.Elsewhere, 0.5), quantile(p.Elsewhere, 0.99), quantile(p.Elsewhere, 1))
		if fault.Everybody {
			elsewhere = "| |"
		}
		recovery := 0.0
		for _, took := range t.Recoveries[fault.Class] {
			recovery = max(recovery, took)
		}
		fmt.Fprintf(&out, "| %s | %d | %.2f | %s | %.2f | %.1f |\n", fault.Class, t.Faults[fault.Class], quantile(p.All, 1), elsewhere, quantile(p.There, 1), recovery)
	}
	if len(t.CaughtUp) > 0 {
		fmt.Fprintf(&out, "\nThen every copy had caught up after %.1f s at the most, %.1f s in half of the cases; the next fault came later.\n",
			at(t.CaughtUp, 1), at(t.CaughtUp, 0.5))
	}
	return out.String()
}

// at is the value that such a part of all does not pass.
func at(values []float64, part float64) float64 {
	sorted := append([]float64(nil), values...)
	sort.Float64s(sorted)
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

// quantile in seconds, of microseconds.
func quantile(values []int64, part float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := append([]int64(nil), values...)
	sort.Slice(sorted, func(a, b int) bool { return sorted[a] < sorted[b] })
	at := min(len(sorted)-1, int(part*float64(len(sorted))))
	return float64(sorted[at]) / 1e6
}
