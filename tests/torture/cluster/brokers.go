package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Leveret is the broker of this project.
type Leveret struct {
	Binary string
	Folder string
	// Arguments more.
	Arguments []string
}

// Name says what it is.
func (l *Leveret) Name() string { return "leveret" }

// Command starts a node, which is the process itself.
func (l *Leveret) Command(n *Node, all []*Node) *exec.Cmd {
	var peers []string
	for _, each := range all {
		peers = append(peers, fmt.Sprintf("%s:%d", each.Address, peerPort))
	}
	arguments := []string{
		"--net=/run/netns/" + n.Namespace, l.Binary, "server",
		"--data-dir", filepath.Join(n.Disk, "data"), "--node-name", fmt.Sprintf("leveret@n%d", n.Number),
		"--amqp", n.Host(), "--management", n.Address + ":15672", "--loopback-users", "none",
		"--cluster-peers", strings.Join(peers, ","), "--cluster-address", fmt.Sprintf("%s:%d", n.Address, peerPort),
		"--cluster-secret-file", l.secret(),
	}
	command := exec.Command("nsenter", append(arguments, l.Arguments...)...)
	for _, variable := range os.Environ() {
		// The torture's own variable would be an unknown setting.
		if !strings.HasPrefix(variable, "LEVERET_") {
			command.Env = append(command.Env, variable)
		}
	}
	return command
}

func (l *Leveret) secret() string { return filepath.Join(l.Folder, "secret") }

// Pid is that of the command: nsenter becomes the program.
func (l *Leveret) Pid(n *Node) int {
	if n.command == nil || n.command.Process == nil {
		return 0
	}
	select {
	case <-n.ended:
		return 0
	default:
		return n.command.Process.Pid
	}
}

// Form has nothing to do: nodes find each other.
func (l *Leveret) Form([]*Node) error { return nil }

// Prepare writes down what the nodes share.
func (l *Leveret) Prepare() error {
	return os.WriteFile(l.secret(), []byte("a secret of three nodes under torture\n"), 0o600)
}

// RabbitMQ is Debian's.
type RabbitMQ struct{ Folder string }

// Name says what it is.
func (r *RabbitMQ) Name() string { return "rabbitmq" }

// Prepare writes down what the nodes share.
func (r *RabbitMQ) Prepare() error {
	home := filepath.Join(r.Folder, "home")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(home, ".erlang.cookie"), []byte("TORTURECOOKIE"), 0o400)
}

func (r *RabbitMQ) environment(n *Node) []string {
	base := filepath.Join(n.Disk, "rabbitmq")
	return []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + filepath.Join(r.Folder, "home"),
		"RABBITMQ_USE_LONGNAME=true", "RABBITMQ_NODENAME=rabbit@" + n.Address,
		"RABBITMQ_NODE_IP_ADDRESS=" + n.Address, "RABBITMQ_NODE_PORT=" + strconv.Itoa(amqpPort),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(peerPort),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(base, "mnesia"), "RABBITMQ_LOG_BASE=" + filepath.Join(base, "log"),
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(base, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(base, "none.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(base, "enabled_plugins"),
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(base, "none.conf"),
	}
}

const rabbitConfiguration = `loopback_users = none
cluster_partition_handling = pause_minority
disk_free_limit.absolute = 64MB
`

// Command starts a node by the scripts that come with it.
func (r *RabbitMQ) Command(n *Node, _ []*Node) *exec.Cmd {
	base := filepath.Join(n.Disk, "rabbitmq")
	for _, folder := range []string{"mnesia", "log"} {
		_ = os.MkdirAll(filepath.Join(base, folder), 0o755)
	}
	_ = os.WriteFile(filepath.Join(base, "rabbitmq.conf"), []byte(rabbitConfiguration), 0o644)
	_ = os.WriteFile(filepath.Join(base, "enabled_plugins"), []byte("[].\n"), 0o644)
	_ = os.WriteFile(filepath.Join(base, "none.conf"), nil, 0o644)
	command := exec.Command("nsenter", "--net=/run/netns/"+n.Namespace, "/usr/lib/rabbitmq/bin/rabbitmq-server")
	command.Env, command.Dir = r.environment(n), "/"
	return command
}

// Pid is that of the Erlang machine with this node's folder.
func (r *RabbitMQ) Pid(n *Node) int {
	wanted := []byte("RABBITMQ_MNESIA_BASE=" + filepath.Join(n.Disk, "rabbitmq", "mnesia"))
	processes, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range processes {
		if name, err := os.ReadFile(path); err != nil || string(name) != "beam.smp\n" {
			continue
		}
		environment, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if err != nil || len(environment) == 0 {
			continue
		}
		for _, variable := range bytes.Split(environment, []byte{0}) {
			if bytes.Equal(variable, wanted) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				return pid
			}
		}
	}
	return 0
}

func (r *RabbitMQ) ctl(n *Node, arguments ...string) error {
	all := append([]string{"--net=/run/netns/" + n.Namespace, "/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", "-l", "-n", "rabbit@" + n.Address}, arguments...)
	command := exec.Command("nsenter", all...)
	command.Env, command.Dir = r.environment(n), "/"
	out, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(arguments, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Form joins all nodes to the first.
func (r *RabbitMQ) Form(all []*Node) error {
	for _, n := range all {
		due := time.Now().Add(2 * time.Minute)
		for r.ctl(n, "await_startup") != nil {
			if time.Now().After(due) {
				return errors.New("RabbitMQ does not start: " + n.Tail(5))
			}
			time.Sleep(time.Second)
		}
		if n == all[0] {
			continue
		}
		for _, step := range [][]string{{"stop_app"}, {"reset"}, {"join_cluster", "rabbit@" + all[0].Address}, {"start_app"}} {
			if err := r.ctl(n, step...); err != nil {
				return err
			}
		}
	}
	return nil
}
