// Three nodes of a broker under torture, and whether they kept their word.
//
// Invariant: the exit code is 0 only if every history was read to its end and no promise was broken in any.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"torture/check"
	"torture/cluster"
)

const usage = `torture run [flags]      three nodes under faults, with clients; each round is checked (root: it makes namespaces and mounts)
torture check FILE...    judges histories that were kept
torture report FILE...   the tables of runs, from BROKER.json
torture faults           lists the faults
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "run":
		err = run(os.Args[2:])
	case "check":
		err = judge(os.Args[2:])
	case "report":
		for _, path := range os.Args[2:] {
			if err = report(path); err != nil {
				break
			}
		}
	case "faults":
		for _, fault := range cluster.Faults {
			fmt.Printf("%-13s %s\n", fault.Class, fault.What)
		}
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	var o Options
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	flags.StringVar(&o.Broker, "broker", "leveret", "leveret or rabbitmq")
	flags.StringVar(&o.Binary, "binary", "", "the leveret program")
	flags.StringVar(&o.Folder, "folder", "", "where disks, logs and histories go")
	flags.DurationVar(&o.For, "for", 5*time.Minute, "how long; the last round ends later")
	flags.Int64Var(&o.Seed, "seed", time.Now().UnixNano()%1_000_000, "of the order of faults and their moments")
	flags.IntVar(&o.Rate, "rate", 600, "messages a second, all publishers together")
	flags.IntVar(&o.FaultsARound, "faults-a-round", 6, "")
	only := flags.String("only", "", "classes of faults with commas between them; all if there is none")
	flags.IntVar(&o.Faults, "faults", 0, "how many at most")
	flags.BoolVar(&o.Steady, "steady", false, "each publisher has a queue of its own, and nobody declares or breaks off: for figures of pauses")
	flags.BoolVar(&o.Clocks, "clocks", false, "start nodes with libfaketime (Debian's package libfaketime), so that their clocks can be stepped")
	flags.BoolVar(&o.GoOn, "go-on", false, "give a round up after which a node does not serve any more, and begin the next one with new nodes")
	flags.BoolVar(&o.Keep, "keep", false, "keep histories of good rounds too")
	_ = flags.Parse(arguments)
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if o.Folder == "" || (o.Broker == "leveret" && o.Binary == "") {
		return fmt.Errorf("--folder and, for leveret, --binary have to be given")
	}
	if _, err := os.Stat(cluster.FakeTime); o.Clocks && err != nil {
		return fmt.Errorf("--clocks needs Debian's package libfaketime: %w", err)
	}
	hub := os.Getenv("TORTURE_HUB")
	if hub == "" {
		return enter()
	}
	if !cluster.Inside(hub) {
		return fmt.Errorf("this process is not in the namespace %s", hub)
	}
	o.Hub, o.Stop = hub, make(chan os.Signal, 1)
	signal.Notify(o.Stop, syscall.SIGINT, syscall.SIGTERM)
	return torture(&o)
}

// enter makes the namespace of the clients and goes on there.
func enter() error {
	hub := fmt.Sprintf("torture%d", os.Getpid())
	if err := cluster.Hub(hub); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	arguments := append([]string{"nsenter", "--net=/run/netns/" + hub, self}, os.Args[1:]...)
	return syscall.Exec(nsenter, arguments, append(os.Environ(), "TORTURE_HUB="+hub))
}

func judge(paths []string) error {
	bad := 0
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		verdict, err := check.History(file)
		file.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		text, err := json.MarshalIndent(verdict, "", "  ")
		if err != nil {
			return err
		}
		fmt.Println(string(text))
		if check.Broken(verdict.Totals) > 0 {
			bad++
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d histories show a broken promise", bad, len(paths))
	}
	return nil
}
