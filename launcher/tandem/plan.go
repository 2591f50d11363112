package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-train/tandem/cudaops"
	"github.com/tandem-train/tandem/cudaops/machine"
	"github.com/tandem-train/tandem/internal/job"
	"github.com/tandem-train/tandem/launcher"
)

// surroundings are what a plan depends on beside the command line.
type surroundings struct {
	cards      []visibleCard // in logical order
	visibility cudaops.Visibility
	cpus       int
	environ    []string
	place      *job.NodePlace            // nil: no cluster has started this launcher
	topology   func() (*topology, error) // of the machine's CPUs
}

// visibleCard is a card that workers can get.
type visibleCard struct {
	physical int
	uuid     string
	memory   int64
	cap      *memoryCap // by CUDA_DEVICE_LIMIT; nil: none
	node     int        // NUMA node, or machine.Unknown
}

func (c *visibleCard) String() string {
	if c.physical == cudaops.UnknownPhysical {
		return "card " + c.uuid
	}
	return fmt.Sprintf("physical card %d", c.physical)
}

// memoryCap is a cap on a worker's share of a card.
type memoryCap struct {
	bytes int64
	text  string // as CUDA_DEVICE_LIMIT has it
}

// look finds out the surroundings that a command line needs.
func (o *runOptions) look() (*surroundings, error) {
	s := &surroundings{cpus: usableCPUs(), environ: os.Environ(), topology: machineTopology}
	cards, err := cudaops.AvailableDevices()
	if err != nil {
		return nil, &usageError{err}
	}
	if s.visibility, err = cudaops.VisibleDevices(); err != nil {
		return nil, &usageError{err}
	}
	nodes, err := o.cardNodes()
	if err != nil {
		return nil, err
	}
	for _, d := range cards {
		c := visibleCard{physical: d.Physical, uuid: d.UUID, memory: d.Memory, node: machine.Unknown}
		limit, err := cudaops.MemoryLimit(d.Logical)
		if err != nil {
			return nil, err
		}
		if limit.Source == cudaops.LimitByVariable {
			c.cap = &memoryCap{limit.Bytes, limit.Setting}
		}
		if node, ok := nodes[d.UUID]; ok {
			c.node = node
		}
		s.cards = append(s.cards, c)
	}
	if o.needsPlace() {
		if s.place, err = job.LookupNode(os.LookupEnv); err != nil {
			return nil, &usageError{fmt.Errorf("%w; --standalone runs on this node alone, whatever the variables say", err)}
		}
	}
	return s, nil
}

// needsPlace is whether a cluster has something to say that flags do not.
func (o *runOptions) needsPlace() bool {
	whole := o.nodes > 1 && o.given("node-rank") && (o.masterAddr != "" || o.endpoint.host != "")
	return !o.standalone && o.nodes != 1 && !whole
}

// usableCPUs is how many CPUs this process may use: its affinity and its container's quota count, GOMAXPROCS, which is about a single
// process, does not.
func usableCPUs() int {
	runtime.SetDefaultGOMAXPROCS()
	return runtime.GOMAXPROCS(0)
}

// cardNodes are the NUMA nodes of cards, by UUID, where they matter.
func (o *runOptions) cardNodes() (map[string]int, error) {
	if o.numa == "none" {
		return nil, nil
	}
	m, err := machine.Inspect()
	if err != nil {
		return nil, &usageError{err}
	}
	nodes := map[string]int{}
	for _, c := range m.Cards {
		nodes[c.Properties.UUID] = c.Node
	}
	return nodes, nil
}

// config is the job that the options ask for in these surroundings, all but the program.
func (o *runOptions) config(s *surroundings) (launcher.Config, error) {
	cfg := launcher.Config{
		Args: o.args, RunID: o.id, Role: o.role,
		MaxRestarts: o.maxRestarts, MonitorInterval: o.monitorInterval, Grace: o.grace,
		LogDir: o.logDir, Redirects: o.redirects, Tee: o.tee, Filter: o.filter,
	}
	if err := o.setNodes(&cfg, s.place); err != nil {
		return cfg, err
	}
	cards, err := o.workerCards(s)
	if err != nil {
		return cfg, err
	}
	cpus, err := o.workerCPUs(s, cards)
	if err != nil {
		return cfg, err
	}
	cfg.Env = s.environ
	if o.hidesCards(s) || cards[0] != nil {
		cfg.Env = without(s.environ, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_LIMIT")
	}
	for i, c := range cards {
		w := launcher.Worker{CPUs: cpus[i]}
		switch {
		case c != nil:
			w.Card = c.String()
			w.Env = append(w.Env, "CUDA_VISIBLE_DEVICES="+c.uuid)
			if limit := o.cap(c); limit != nil {
				w.Env = append(w.Env, "CUDA_DEVICE_LIMIT="+limit.text)
			}
		case o.hidesCards(s):
			w.Env = append(w.Env, "CUDA_VISIBLE_DEVICES=")
		}
		threads := strconv.Itoa(threadsOf(i, cpus, s.cpus))
		for _, name := range []string{"OMP_NUM_THREADS", "GOMAXPROCS"} {
			if !has(s.environ, name) {
				w.Env = append(w.Env, name+"="+threads)
			}
		}
		cfg.Workers = append(cfg.Workers, w)
	}
	return cfg, o.check(&cfg)
}

// hidesCards is whether there are cards, but workers are to compute without them.
func (o *runOptions) hidesCards(s *surroundings) bool {
	return o.procs.kind == "cpu" && len(s.cards) > 0
}

// workerCards are the cards of workers, in the order of local ranks: a nil pointer for each that computes on the host.
func (o *runOptions) workerCards(s *surroundings) ([]*visibleCard, error) {
	cards, err := o.chosenCards(s)
	if err != nil {
		return nil, err
	}
	if len(cards) == 0 || o.procs.kind == "cpu" {
		return o.hostWorkers(s)
	}
	each := max(1, o.procsPerDevice)
	n := len(cards) * each
	if o.procs.kind == "number" {
		if o.procs.count > n {
			return nil, o.tooMany(s, len(cards), each)
		}
		n = o.procs.count
	}
	workers := make([]*visibleCard, n)
	for i := range workers {
		workers[i] = &cards[i/each]
	}
	return workers, nil
}

// hostWorkers are workers without a card. Flags that are about cards make no sense for them.
func (o *runOptions) hostWorkers(s *surroundings) ([]*visibleCard, error) {
	why, cure := "there is no visible card", "set TANDEM_SIM_CARDS=4 to simulate some"
	if s.visibility.Physical > 0 {
		why = fmt.Sprintf("%s: %s", why, s.visibility)
		cure = "unset CUDA_VISIBLE_DEVICES or list cards, each once"
	}
	if o.procs.kind == "cpu" {
		why, cure = "workers have no card with "+o.flags.as("nproc-per-node"), "leave one of them out"
	}
	for _, flag := range []string{"devices", "procs-per-device", "memory-fraction", "memory-limit"} {
		if o.given(flag) {
			return nil, usagef("%s: %s; %s", o.flags.as(flag), why, cure)
		}
	}
	switch o.procs.kind {
	case "gpu":
		return nil, usagef("%s: %s; %s, or give a number to run on the host", o.flags.as("nproc-per-node"), why, cure)
	case "auto", "cpu":
		return make([]*visibleCard, s.cpus), nil
	case "number":
		return make([]*visibleCard, o.procs.count), nil
	}
	return make([]*visibleCard, 1), nil
}

// chosenCards are the cards to run on: those of --devices, or all visible ones in logical order.
func (o *runOptions) chosenCards(s *surroundings) ([]visibleCard, error) {
	if o.devices == nil || len(s.cards) == 0 {
		return s.cards, nil
	}
	var cards []visibleCard
	for _, id := range o.devices {
		i := slices.IndexFunc(s.cards, func(c visibleCard) bool { return c.physical == id })
		if i < 0 {
			return nil, o.noSuchCard(s, id)
		}
		cards = append(cards, s.cards[i])
	}
	return cards, nil
}

func (o *runOptions) noSuchCard(s *surroundings, id int) error {
	why := "this machine has no such card"
	if id < s.visibility.Physical {
		why = "it is not visible (" + s.visibility.String() + ")"
	}
	visible := make([]int, len(s.cards))
	for i, c := range s.cards {
		visible[i] = c.physical
	}
	return usagef("%s: card %d: %s; physical numbers of visible cards: --devices %s", o.flags.as("devices"), id, why, join(visible))
}

// tooMany is the error of more workers than places on cards.
func (o *runOptions) tooMany(s *surroundings, cards, each int) error {
	n := o.procs.count
	places := "1 visible card"
	if cards > 1 {
		places = fmt.Sprintf("%d visible cards", cards)
	}
	if o.devices != nil {
		places = strings.Replace(places, "visible", "named", 1)
	}
	if each > 1 {
		places += fmt.Sprintf(" with %d workers each", each)
	}
	works := fmt.Sprintf("--nproc-per-node %d; --procs-per-device %d, so that cards are shared", cards*each, (n+cards-1)/cards)
	if cards < len(s.cards) {
		works += "; more cards in --devices"
	}
	return usagef("%s: there are %s. What works: %s; or CUDA_VISIBLE_DEVICES= (empty), so that workers compute on the host",
		o.flags.as("nproc-per-node"), places, works)
}

// cap is the cap of a worker on a card: the smallest of those that are set, or nil.
func (o *runOptions) cap(c *visibleCard) *memoryCap {
	smallest := c.cap
	lower := func(bytes int64, flag string) {
		if bytes < c.memory && (smallest == nil || bytes < smallest.bytes) {
			smallest = &memoryCap{bytes, exactSize(bytes) + cudaops.LimitOrigin + o.flags.as(flag)}
		}
	}
	if o.memoryFraction > 0 {
		lower(int64(o.memoryFraction*float64(c.memory)), "memory-fraction")
	}
	if o.memoryLimit > 0 {
		lower(o.memoryLimit, "memory-limit")
	}
	return smallest
}

// workerCPUs are the CPUs that workers are bound to, nil for those that are not.
func (o *runOptions) workerCPUs(s *surroundings, cards []*visibleCard) ([][]int, error) {
	if o.numa == "none" {
		return make([][]int, len(cards)), nil
	}
	top, err := s.topology()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.flags.as("numa-binding"), err)
	}
	nodes := make([]int, len(cards))
	for i, c := range cards {
		nodes[i] = machine.Unknown
		if c != nil {
			nodes[i] = c.node
		}
	}
	cpus, err := top.bind(o.numa, nodes)
	if err != nil {
		return nil, usagef("%s: %w", o.flags.as("numa-binding"), err)
	}
	return cpus, nil
}

// threadsOf is a worker's share of the CPUs that it may run on: of all where workers are not bound, else of those that it was bound to,
// which others may have been, too.
func threadsOf(worker int, cpus [][]int, all int) int {
	sharing := 0
	for _, set := range cpus {
		if slices.Equal(set, cpus[worker]) {
			sharing++
		}
	}
	if cpus[worker] != nil {
		all = len(cpus[worker])
	}
	return max(1, all/sharing)
}

// defaultPort is where rank 0 listens when several nodes have to know and nobody says, as torchrun has it.
const defaultPort = 29500

// setNodes says which node this is, and where node 0 is: what flags do not say, the cluster does.
func (o *runOptions) setNodes(cfg *launcher.Config, place *job.NodePlace) error {
	if place == nil || place.Nodes == 0 && o.nodes == 0 { // an index alone makes no job of several nodes
		place = new(job.NodePlace)
	}
	cfg.Nodes = max(1, place.Nodes)
	if o.nodes > 0 {
		cfg.Nodes = o.nodes
	}
	cfg.Node = o.nodeRank
	if !o.given("node-rank") && cfg.Nodes > 1 {
		if place.Source == "" {
			return usagef("%s: say which of them this one is, with --node-rank 0 to %d", o.flags.as("nnodes"), cfg.Nodes-1)
		}
		cfg.Node = place.Node
	}
	if cfg.Node >= cfg.Nodes {
		switch {
		case o.given("node-rank") && cfg.Nodes == 1:
			return usagef("%s: there is one node: say with --nnodes how many there are", o.flags.as("node-rank"))
		case o.given("node-rank"):
			return usagef("%s: there are %d nodes: want 0 to %d", o.flags.as("node-rank"), cfg.Nodes, cfg.Nodes-1)
		}
		return usagef("%s: this is node %d for %s, and there are nodes 0 to %d", o.flags.as("nnodes"), cfg.Node, place.Source, cfg.Nodes-1)
	}
	cfg.Addr, cfg.Port = o.masterAddr, o.masterPort
	if o.endpoint.host != "" {
		cfg.Addr, cfg.Port = o.endpoint.host, o.endpoint.port
	}
	if cfg.Nodes == 1 {
		return nil
	}
	if cfg.Addr == "" {
		cfg.Addr = place.Addr
	}
	if cfg.Addr == "" {
		return usagef("%d nodes: say where the first is: --master-addr HOST", cfg.Nodes)
	}
	if cfg.Port == 0 {
		cfg.Port = place.Port
	}
	if cfg.Port == 0 {
		cfg.Port = defaultPort
	}
	if cfg.RunID == "" {
		cfg.RunID = place.RunID
	}
	if cfg.RunID == "" { // what all nodes know, and other jobs do not share
		cfg.RunID = fmt.Sprintf("%s-%d", cfg.Addr, cfg.Port)
	}
	return nil
}

// check lets the launcher say what is wrong with a job, in the words of this command line.
func (o *runOptions) check(cfg *launcher.Config) error {
	whole := *cfg
	whole.Program = o.program
	err := whole.Validate()
	var wrong *launcher.ConfigError
	if !errors.As(err, &wrong) {
		return err
	}
	flag, ok := map[string]string{
		"RunID": "rdzv-id", "Role": "role", "MaxRestarts": "max-restarts", "Redirects": "redirects", "Tee": "tee", "Filter": "local-ranks-filter",
	}[wrong.Field]
	if !ok || !o.given(flag) {
		return &usageError{err}
	}
	return usagef("%s: %s", o.flags.as(flag), wrong.Why)
}

// has is whether a list of NAME=VALUE has a name.
func has(environ []string, name string) bool {
	return slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

// without is a list of NAME=VALUE but for some names.
func without(environ []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(names, name)
	})
}
