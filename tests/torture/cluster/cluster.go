// Package cluster is three nodes of a broker, each in a network namespace and on a file system of its own, and what can be done to them.
//
// Invariant: nothing here outlives Close, and no packet leaves the namespaces that are made here.
package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	amqpPort   = 5672
	peerPort   = 25672
	diskBytes  = 2 << 30
	nodesCount = 3
)

// Broker starts a node of a kind.
type Broker interface {
	// Name of the kind and its version.
	Name() string
	// Command starts a node in its namespace; it may go on until it ends, or after it has started something.
	Command(n *Node, all []*Node) *exec.Cmd
	// Pid of the process that is the node.
	Pid(n *Node) int
	// Form makes one cluster of nodes that run for the first time.
	Form(all []*Node) error
}

// Node is a machine of its own as far as its processes can see.
type Node struct {
	Number    int
	Namespace string
	Address   string
	// Disk is where its file system is mounted; everything that it keeps is there.
	Disk    string
	Log     string
	image   string
	command *exec.Cmd
	ended   chan struct{}
	// Broken: the file system was shut down, and has to be mounted again before the next start.
	broken bool
}

// Host is where it serves AMQP.
func (n *Node) Host() string { return fmt.Sprintf("%s:%d", n.Address, amqpPort) }

// Cluster is all nodes.
type Cluster struct {
	Nodes  []*Node
	Broker Broker
	folder string
	// Hub is the namespace of the bridge, where the clients are.
	hub   string
	rules []rule
	// Clocks that can be stepped: nodes are started with libfaketime.
	Clocks bool
}

type rule struct {
	namespace string
	arguments []string
}

// run runs a program to its end.
func run(name string, arguments ...string) error {
	out, err := exec.Command(name, arguments...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// in runs a program in a namespace.
func in(namespace, name string, arguments ...string) error {
	return run("nsenter", append([]string{"--net=/run/netns/" + namespace, name}, arguments...)...)
}

// Hub makes the namespace of the clients; the rest of the torture has to run in it.
func Hub(name string) error {
	for _, each := range [][]string{
		{"netns", "add", name},
		{"-n", name, "link", "set", "lo", "up"},
		{"-n", name, "link", "add", "bridge", "type", "bridge"},
		{"-n", name, "addr", "add", address(254) + "/24", "dev", "bridge"},
		{"-n", name, "link", "set", "bridge", "up"},
	} {
		if err := run("ip", each...); err != nil {
			return err
		}
	}
	return nil
}

// Inside is true when this process is in the hub: nowhere else may it speak to the nodes' addresses.
func Inside(hub string) bool {
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false
	}
	theirs, err := os.Stat("/run/netns/" + hub)
	return err == nil && os.SameFile(own, theirs)
}

// address of a host in the namespaces, from those that are for documentation and nowhere else.
func address(host int) string { return fmt.Sprintf("192.0.2.%d", host) }

// New makes namespaces and disks. They are there until Close, also when New fails.
func New(broker Broker, folder, hub string) (*Cluster, error) {
	c := &Cluster{Broker: broker, folder: folder, hub: hub}
	for number := 1; number <= nodesCount; number++ {
		n := &Node{
			Number:    number,
			Namespace: fmt.Sprintf("%s-%d", hub, number),
			Address:   address(number),
			Disk:      filepath.Join(folder, fmt.Sprintf("disk%d", number)),
			Log:       filepath.Join(folder, fmt.Sprintf("node%d.log", number)),
			image:     filepath.Join(folder, fmt.Sprintf("disk%d.img", number)),
		}
		c.Nodes = append(c.Nodes, n)
		if err := c.link(n); err != nil {
			return c, err
		}
		if err := n.makeDisk(); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *Cluster) link(n *Node) error {
	port := fmt.Sprintf("port%d", n.Number)
	for _, each := range [][]string{
		{"netns", "add", n.Namespace},
		{"-n", n.Namespace, "link", "set", "lo", "up"},
		{"-n", c.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", n.Namespace},
		{"-n", c.hub, "link", "set", port, "master", "bridge", "up"},
		{"-n", n.Namespace, "addr", "add", n.Address + "/24", "dev", "eth0"},
		{"-n", n.Namespace, "link", "set", "eth0", "up"},
	} {
		if err := run("ip", each...); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) makeDisk() error {
	if err := os.MkdirAll(n.Disk, 0o755); err != nil {
		return err
	}
	file, err := os.Create(n.image)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(diskBytes); err != nil {
		return err
	}
	if err := run("mkfs.ext4", "-q", "-F", "-m", "0", n.image); err != nil {
		return err
	}
	return n.mount()
}

func (n *Node) mount() error { return run("mount", "-o", "loop,noatime", n.image, n.Disk) }

// Start starts a node on what its disk holds.
func (c *Cluster) Start(n *Node) error {
	if n.broken {
		// A child of the process that just ended may still hold it.
		due := time.Now().Add(10 * time.Second)
		for err := run("umount", n.Disk); err != nil; err = run("umount", n.Disk) {
			if time.Now().After(due) {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err := n.mount(); err != nil {
			return err
		}
		n.broken = false
	}
	log, err := os.OpenFile(n.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "--- started at %s\n", time.Now().UTC().Format(time.RFC3339))
	n.command = c.Broker.Command(n, c.Nodes)
	if c.Clocks {
		if err := n.step(0); err != nil {
			return err
		}
		// The clock that only grows stays as it is: a step of the time of day is what is wanted.
		n.command.Env = append(n.command.Env, "LD_PRELOAD="+FakeTime, "FAKETIME_TIMESTAMP_FILE="+n.clock(), "FAKETIME_CACHE_DURATION=1",
			"FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1")
	}
	n.command.Stdout, n.command.Stderr = log, log
	n.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.command.Start(); err != nil {
		return err
	}
	n.ended = make(chan struct{})
	go func(command *exec.Cmd, ended chan struct{}) { _ = command.Wait(); close(ended) }(n.command, n.ended)
	return nil
}

// FakeTime is the library that gives a process another time of day.
const FakeTime = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"

func (n *Node) clock() string { return n.image + ".clock" }

// step moves a node's time of day, to so far from the machine's.
func (n *Node) step(by time.Duration) error {
	return os.WriteFile(n.clock(), []byte(fmt.Sprintf("%+ds\n", int(by.Seconds()))), 0o644)
}

// Runs is false once the process of a node is gone.
func (c *Cluster) Runs(n *Node) bool {
	pid := c.Broker.Pid(n)
	return pid > 0 && syscall.Kill(pid, 0) == nil
}

// Signal sends one to the process that is the node.
func (c *Cluster) Signal(n *Node, signal syscall.Signal) error {
	pid := c.Broker.Pid(n)
	if pid <= 0 {
		return fmt.Errorf("node %d does not run", n.Number)
	}
	return syscall.Kill(pid, signal)
}

// End waits until a node's process is gone.
func (c *Cluster) End(n *Node, patience time.Duration) error {
	due := time.Now().Add(patience)
	for c.Runs(n) {
		if time.Now().After(due) {
			return fmt.Errorf("node %d does not end", n.Number)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n.ended != nil {
		select {
		case <-n.ended:
		case <-time.After(5 * time.Second):
		}
	}
	return nil
}

// Kill is kill -9 of one node.
func (c *Cluster) Kill(n *Node) error {
	if err := c.Signal(n, syscall.SIGKILL); err != nil {
		return err
	}
	return c.End(n, 20*time.Second)
}

// Tail is the end of a node's log.
func (n *Node) Tail(lines int) string {
	text, err := os.ReadFile(n.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// remove ends what runs on a node and removes its disk.
func (c *Cluster) remove(n *Node) error {
	var wrong error
	if c.Runs(n) {
		_ = c.Signal(n, syscall.SIGCONT)
		wrong = c.Kill(n)
	}
	if n.command != nil {
		// What it left behind, epmd for one.
		_ = syscall.Kill(-n.command.Process.Pid, syscall.SIGKILL)
	}
	endAll(n.Namespace)
	_ = run("fsfreeze", "-u", n.Disk)
	due := time.Now().Add(5 * time.Second)
	for run("umount", n.Disk) != nil && time.Now().Before(due) {
		time.Sleep(100 * time.Millisecond)
	}
	_ = os.Remove(n.image)
	return wrong
}

// Renew ends all nodes and gives each an empty disk. They have to be started.
func (c *Cluster) Renew() error {
	wrong := []error{c.heal()}
	for _, n := range c.Nodes {
		wrong = append(wrong, c.remove(n), n.makeDisk())
		n.broken = false
	}
	return errors.Join(wrong...)
}

// Close ends and removes everything.
func (c *Cluster) Close() error {
	var wrong []error
	for _, n := range c.Nodes {
		wrong = append(wrong, c.remove(n))
		wrong = append(wrong, run("ip", "netns", "del", n.Namespace))
	}
	wrong = append(wrong, run("ip", "netns", "del", c.hub))
	return errors.Join(wrong...)
}

// endAll kills what is left in a namespace that is ours.
func endAll(namespace string) {
	out, err := exec.Command("ip", "netns", "pids", namespace).Output()
	if err != nil {
		return
	}
	for _, pid := range strings.Fields(string(out)) {
		_ = run("kill", "-9", pid)
	}
}
