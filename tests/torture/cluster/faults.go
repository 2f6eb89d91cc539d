package cluster

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// Fault is something that happens to a cluster and passes.
type Fault struct {
	Class string
	// What in plain words, for the report.
	What string
	// Everybody is hit, so no node is another one's elsewhere.
	Everybody bool
	// Clocks have to be such that can be stepped.
	Clocks bool
	// Do makes it happen to a node, waits, and heals it. Nodes that ended are started by whoever called.
	Do func(c *Cluster, n *Node, r *rand.Rand) error
}

func lasting(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int63n(int64(most-least)))
}

// Faults are all there are.
var Faults = []Fault{
	{Class: "kill", What: "`kill -9` of a node, back after 0 to 6 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		if err := c.Kill(n); err != nil {
			return err
		}
		time.Sleep(lasting(r, 0, 6*time.Second))
		return c.Start(n)
	}},
	{Class: "terminate", What: "SIGTERM of a node, started again", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		if err := c.Signal(n, syscall.SIGTERM); err != nil {
			return err
		}
		if err := c.End(n, 60*time.Second); err != nil {
			return err
		}
		return c.Start(n)
	}},
	{Class: "stop", What: "SIGSTOP of a node, SIGCONT after 4 to 12 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		return stop(c, n, lasting(r, 4*time.Second, 12*time.Second))
	}},
	{Class: "hiccup", What: "SIGSTOP of a node for 0.2 to 2 s, five times", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for range 5 {
			if err := stop(c, n, lasting(r, 200*time.Millisecond, 2*time.Second)); err != nil {
				return err
			}
			time.Sleep(lasting(r, 100*time.Millisecond, time.Second))
		}
		return nil
	}},
	{Class: "cut", What: "a node hears and reaches no other node for 5 to 12 s; clients reach it", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		return c.cut(n, c.others(n), true, true, lasting(r, 5*time.Second, 12*time.Second))
	}},
	{Class: "deaf", What: "a node does not hear the others for 5 to 12 s; they hear it", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		return c.cut(n, c.others(n), true, false, lasting(r, 5*time.Second, 12*time.Second))
	}},
	{Class: "mute", What: "a node is not heard by the others for 5 to 12 s; it hears them", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		return c.cut(n, c.others(n), false, true, lasting(r, 5*time.Second, 12*time.Second))
	}},
	{Class: "pair", What: "two nodes do not reach each other for 5 to 12 s; the third reaches both", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		return c.cut(n, c.others(n)[:1], true, true, lasting(r, 5*time.Second, 12*time.Second))
	}},
	{Class: "pair-deaf", What: "one node does not hear one other for 5 to 12 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		return c.cut(n, c.others(n)[:1], true, false, lasting(r, 5*time.Second, 12*time.Second))
	}},
	{Class: "flap", What: "a node is cut off for 0.1 to 3 s, six times", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for range 6 {
			if err := c.cut(n, c.others(n), true, true, lasting(r, 100*time.Millisecond, 3*time.Second)); err != nil {
				return err
			}
			time.Sleep(lasting(r, 100*time.Millisecond, 2*time.Second))
		}
		return nil
	}},
	{Class: "unplugged", What: "a node is reached by nobody, clients neither, for 5 to 12 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		if err := run("ip", "-n", n.Namespace, "link", "set", "eth0", "down"); err != nil {
			return err
		}
		time.Sleep(lasting(r, 5*time.Second, 12*time.Second))
		return run("ip", "-n", n.Namespace, "link", "set", "eth0", "up")
	}},
	{Class: "lossy", What: "a node loses a tenth of all packets from other nodes for 10 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for _, other := range c.others(n) {
			c.rule(n.Namespace, "INPUT", "-s", other.Address, "-m", "statistic", "--mode", "random", "--probability", "0.1", "-j", "DROP")
		}
		time.Sleep(10 * time.Second)
		return c.heal()
	}},
	{Class: "narrow", What: "a node sends at 1 Mbit/s for 10 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		if err := in(n.Namespace, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1mbit", "burst", "16k", "latency", "200ms"); err != nil {
			return err
		}
		time.Sleep(10 * time.Second)
		return in(n.Namespace, "tc", "qdisc", "del", "dev", "eth0", "root")
	}},
	{Class: "disk-hangs", What: "a node's file system takes no write for 3 to 8 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		return freeze(n, lasting(r, 3*time.Second, 8*time.Second))
	}},
	{Class: "disk-slow", What: "a node's file system takes writes for 60 ms of every 360 ms, for 12 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for began := time.Now(); time.Since(began) < 12*time.Second; {
			if err := freeze(n, 300*time.Millisecond); err != nil {
				return err
			}
			time.Sleep(60 * time.Millisecond)
		}
		return nil
	}},
	{Class: "disk-full", What: "a node's disk has no free byte for 6 to 12 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		filler := filepath.Join(n.Disk, "filler")
		if err := fill(filler); err != nil {
			return err
		}
		time.Sleep(lasting(r, 6*time.Second, 12*time.Second))
		return os.Remove(filler)
	}},
	{Class: "disk-fails", What: "every write and sync of a node fails (EIO) until it is mounted again", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		if err := shutdown(n); err != nil {
			return err
		}
		n.broken = true
		// A node that cannot write ends by itself, or goes on without a disk. Then it is ended.
		if err := c.End(n, lasting(r, 5*time.Second, 10*time.Second)); err != nil {
			if err := c.Kill(n); err != nil {
				return err
			}
		}
		return c.Start(n)
	}},
	{Class: "power", What: "a power cut of a node: what was not synced is gone, back after 0 to 4 s", Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		if err := c.powerCut(n); err != nil {
			return err
		}
		time.Sleep(lasting(r, 0, 4*time.Second))
		return c.Start(n)
	}},
	{Class: "clock", What: "a node's time of day jumps an hour ahead, then two hours back, then forth, 4 s each", Clocks: true, Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
			if err := n.step(by); err != nil {
				return err
			}
			time.Sleep(4 * time.Second)
		}
		return nil
	}},
	{Class: "kill-all", What: "`kill -9` of all nodes within a millisecond or so", Everybody: true, Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for _, each := range c.Nodes {
			if err := c.Signal(each, syscall.SIGKILL); err != nil {
				return err
			}
		}
		return c.startAll(r)
	}},
	{Class: "power-all", What: "a power cut of all nodes: what was not synced is gone on each", Everybody: true, Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for _, each := range c.Nodes {
			if err := shutdown(each); err != nil {
				return err
			}
			each.broken = true
		}
		for _, each := range c.Nodes {
			// It may have ended by itself meanwhile, its disk having failed.
			_ = c.Signal(each, syscall.SIGKILL)
		}
		return c.startAll(r)
	}},
	{Class: "kill-two", What: "`kill -9` of two nodes, one back after 3 s, the other 3 s later", Everybody: true, Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		others := c.others(n)
		for _, each := range others {
			if err := c.Kill(each); err != nil {
				return err
			}
		}
		for _, each := range others {
			time.Sleep(3 * time.Second)
			if err := c.Start(each); err != nil {
				return err
			}
		}
		return nil
	}},
	{Class: "apart", What: "no node reaches another for 5 to 12 s", Everybody: true, Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		for _, each := range c.Nodes {
			for _, other := range c.others(each) {
				c.rule(each.Namespace, "INPUT", "-s", other.Address, "-j", "DROP")
			}
		}
		time.Sleep(lasting(r, 5*time.Second, 12*time.Second))
		return c.heal()
	}},
	{Class: "cut-and-kill", What: "a node is cut off, another killed, the first let back, then the other started", Everybody: true, Do: func(c *Cluster, n *Node, r *rand.Rand) error {
		others := c.others(n)
		for _, other := range others {
			c.rule(n.Namespace, "INPUT", "-s", other.Address, "-j", "DROP")
			c.rule(n.Namespace, "OUTPUT", "-d", other.Address, "-j", "DROP")
		}
		time.Sleep(lasting(r, 3*time.Second, 6*time.Second))
		if err := c.Kill(others[0]); err != nil {
			return errors.Join(err, c.heal())
		}
		time.Sleep(lasting(r, 0, 2*time.Second))
		if err := c.heal(); err != nil {
			return err
		}
		time.Sleep(lasting(r, 2*time.Second, 6*time.Second))
		return c.Start(others[0])
	}},
}

func stop(c *Cluster, n *Node, d time.Duration) error {
	if err := c.Signal(n, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(d)
	return c.Signal(n, syscall.SIGCONT)
}

func (c *Cluster) others(n *Node) []*Node {
	var out []*Node
	for step := 1; step < len(c.Nodes); step++ {
		out = append(out, c.Nodes[(n.Number-1+step)%len(c.Nodes)])
	}
	return out
}

func (c *Cluster) startAll(r *rand.Rand) error {
	for _, each := range c.Nodes {
		if err := c.End(each, 20*time.Second); err != nil {
			return err
		}
	}
	for _, each := range r.Perm(len(c.Nodes)) {
		if err := c.Start(c.Nodes[each]); err != nil {
			return err
		}
		time.Sleep(lasting(r, 0, time.Second))
	}
	return nil
}

// cut drops packets between a node and others, at the node.
func (c *Cluster) cut(n *Node, others []*Node, in, out bool, d time.Duration) error {
	for _, other := range others {
		if in {
			c.rule(n.Namespace, "INPUT", "-s", other.Address, "-j", "DROP")
		}
		if out {
			c.rule(n.Namespace, "OUTPUT", "-d", other.Address, "-j", "DROP")
		}
	}
	time.Sleep(d)
	return c.heal()
}

func (c *Cluster) rule(namespace, chain string, arguments ...string) {
	if err := in(namespace, "iptables", append([]string{"-w", "-A", chain}, arguments...)...); err == nil {
		c.rules = append(c.rules, rule{namespace, append([]string{"-w", "-D", chain}, arguments...)})
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
}

func (c *Cluster) heal() error {
	var wrong []error
	for _, rule := range c.rules {
		wrong = append(wrong, in(rule.namespace, "iptables", rule.arguments...))
	}
	c.rules = nil
	return errors.Join(wrong...)
}

func freeze(n *Node, d time.Duration) error {
	if err := run("fsfreeze", "-f", n.Disk); err != nil {
		return err
	}
	time.Sleep(d)
	return run("fsfreeze", "-u", n.Disk)
}

// fill takes all there is, as others take what is freed.
func fill(path string) error {
	var free syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &free); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	size := int64(0)
	for step := int64(free.Bavail) * free.Bsize; step >= 4096; {
		if syscall.Fallocate(int(file.Fd()), 0, size, step) == nil {
			size += step
		} else {
			step /= 2
		}
	}
	return nil
}

func (c *Cluster) powerCut(n *Node) error {
	if err := shutdown(n); err != nil {
		return err
	}
	n.broken = true
	_ = c.Signal(n, syscall.SIGKILL)
	return c.End(n, 20*time.Second)
}

// shutdown makes ext4 stop at once, without writing down what it holds in memory: all that was not synced is lost, and every write or
// sync from now on fails. It is what ext4's own tests do to show that it outlives a power cut.
func shutdown(n *Node) error {
	const (
		request       = 0x8004587d // EXT4_IOC_SHUTDOWN
		withoutLogged = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH
	)
	folder, err := os.Open(n.Disk)
	if err != nil {
		return err
	}
	defer folder.Close()
	how := uint32(withoutLogged)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, folder.Fd(), request, uintptr(unsafe.Pointer(&how))); errno != 0 {
		return fmt.Errorf("shutting down %s: %w", n.Disk, errno)
	}
	return nil
}
