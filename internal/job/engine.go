package job

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// NodePlace is a launcher's place among the launchers of a job, one a node.
type NodePlace struct {
	Node, Nodes int    // Nodes is 0 where the engine does not tell
	Addr        string // of node 0; "" where the engine does not tell
	Port        int    // the same on every node, and another for another job; 0 where the engine does not tell
	RunID       string // the same on every node; "" where the engine does not tell
	Source      string // "Slurm", "Open MPI", "Kubernetes"
}

// LookupNode reads a launcher's place. It is nil for one that no engine started: a Slurm batch script itself, too, runs on one node
// only, however many the job has.
func LookupNode(getenv Getenv) (*NodePlace, error) {
	for _, read := range []func(*reader) *NodePlace{openMPINode, slurmNode, kubernetesNode} {
		r := &reader{getenv: getenv}
		if p := read(r); p != nil {
			if addr, _ := getenv("MASTER_ADDR"); addr != "" {
				p.Addr = addr
			}
			p.Port = r.numberOr("MASTER_PORT", p.Port, 1, 65535)
			if r.err != nil {
				return nil, r.err
			}
			return p, nil
		}
	}
	return nil, nil
}

// slurmStep is what srun tells a task, read by reader r.
type slurmStep struct {
	rank, world int
	node, nodes int
	id          string // of job and step
}

// readSlurmStep is nil for a process that is no task of a step. A batch script has some of the variables, but not the number of a
// step's tasks.
func readSlurmStep(r *reader) *slurmStep {
	for _, name := range []string{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"} {
		if _, set := r.getenv(name); !set {
			return nil
		}
	}
	s := new(slurmStep)
	s.world = r.number("SLURM_STEP_NUM_TASKS", 1, maxWorld)
	s.rank = r.number("SLURM_PROCID", 0, s.world-1)
	s.nodes = r.number("SLURM_STEP_NUM_NODES", 1, s.world)
	s.node = r.number("SLURM_NODEID", 0, s.nodes-1)
	s.id = "slurm-" + r.text("SLURM_JOB_ID", "the job's number") + "." + r.text("SLURM_STEP_ID", "the step's number")
	return s
}

// host is the name of node 0.
func (s *slurmStep) host(r *reader) string {
	if s.nodes == 1 {
		return loopback
	}
	name := "SLURM_STEP_NODELIST"
	list, _ := r.getenv(name)
	if list == "" {
		name = "SLURM_JOB_NODELIST"
		list = r.text(name, "the job's hosts, such as gpu[01-03]")
	}
	host, err := firstHost(list)
	if err != nil {
		r.fail(name, list, "%v", err)
	}
	return host
}

// slurmPlace reads what srun tells the tasks of a step.
func slurmPlace(getenv Getenv) (*Place, error) {
	r := &reader{getenv: getenv}
	s := readSlurmStep(r)
	if s == nil {
		return nil, nil
	}
	p := &Place{Rank: s.rank, World: s.world, Node: s.node, Nodes: s.nodes, Source: "Slurm"}
	p.LocalWorld = s.world
	if s.nodes > 1 {
		const name = "SLURM_STEP_TASKS_PER_NODE"
		list := r.text(name, "the tasks of each node, such as 4(x2),3")
		n, err := tasksOnNode(list, s.node)
		if err != nil {
			r.fail(name, list, "%v", err)
		}
		p.LocalWorld = n
	}
	p.LocalRank = r.number("SLURM_LOCALID", 0, p.LocalWorld-1)
	p.endpoint(r, func() string { return s.host(r) }, s.id)
	return p.finish(r, s.id)
}

func slurmNode(r *reader) *NodePlace {
	s := readSlurmStep(r)
	if s == nil {
		return nil
	}
	if s.world != s.nodes {
		r.fail("SLURM_STEP_NUM_TASKS", strconv.Itoa(s.world),
			"a launcher starts the workers of its node itself, so srun has to start one task a node (there are %d): srun --ntasks-per-node=1", s.nodes)
	}
	p := &NodePlace{Node: s.node, Nodes: s.nodes, RunID: s.id, Source: "Slurm"}
	if r.err == nil {
		p.Addr, p.Port = s.host(r), derivedPort(s.id)
	}
	return p
}

// openMPIJob is what mpirun tells a process, read by reader r.
type openMPIJob struct {
	rank, world           int
	localRank, localWorld int
	id                    string // "" where it does not tell
}

// readOpenMPI is nil for a process that mpirun did not start.
func readOpenMPI(r *reader) *openMPIJob {
	if _, set := r.getenv("OMPI_COMM_WORLD_RANK"); !set {
		return nil
	}
	j := new(openMPIJob)
	j.world = r.number("OMPI_COMM_WORLD_SIZE", 1, maxWorld)
	j.rank = r.number("OMPI_COMM_WORLD_RANK", 0, j.world-1)
	j.localWorld = r.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, j.world)
	j.localRank = r.number("OMPI_COMM_WORLD_LOCAL_RANK", 0, j.localWorld-1)
	for _, name := range []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"} { // of Open MPI 5, and 4
		if value, _ := r.getenv(name); value != "" && j.id == "" {
			j.id = "mpi-" + value
		}
	}
	return j
}

// openMPIPlace reads what mpirun tells its processes. That does not include which node a process is on: its number is that of a job
// whose ranks fill one node after another.
func openMPIPlace(getenv Getenv) (*Place, error) {
	r := &reader{getenv: getenv}
	j := readOpenMPI(r)
	if j == nil {
		return nil, nil
	}
	p := &Place{Rank: j.rank, World: j.world, LocalRank: j.localRank, LocalWorld: j.localWorld, Source: "Open MPI"}
	p.Node, p.Nodes = j.rank/j.localWorld, (j.world+j.localWorld-1)/j.localWorld
	p.endpoint(r, func() string {
		if j.world == j.localWorld {
			return loopback
		}
		return r.text("MASTER_ADDR", "the name or address of rank 0's host, for Open MPI does not tell it: mpirun -x MASTER_ADDR=HOST")
	}, j.id)
	return p.finish(r, j.id)
}

func openMPINode(r *reader) *NodePlace {
	j := readOpenMPI(r)
	if j == nil {
		return nil
	}
	if j.localWorld != 1 {
		r.fail("OMPI_COMM_WORLD_LOCAL_SIZE", strconv.Itoa(j.localWorld),
			"a launcher starts the workers of its node itself, so mpirun has to start one process a node: mpirun --map-by ppr:1:node")
	}
	p := &NodePlace{Node: j.rank, Nodes: j.world, RunID: j.id, Source: "Open MPI"}
	if j.world == 1 {
		p.Addr = loopback
	}
	if j.id != "" {
		p.Port = derivedPort(j.id)
	}
	return p
}

// kubernetesNode reads what a pod of an indexed job is told: its index alone.
func kubernetesNode(r *reader) *NodePlace {
	if index, _ := r.getenv("JOB_COMPLETION_INDEX"); index == "" {
		return nil
	}
	return &NodePlace{Node: r.number("JOB_COMPLETION_INDEX", 0, maxWorld), Source: "Kubernetes"}
}

const loopback = "127.0.0.1"

// endpoint sets where rank 0 listens: at MASTER_ADDR and MASTER_PORT where they are set, else at host, on a port that all processes
// derive from the job's id. A process that is alone needs none.
func (p *Place) endpoint(r *reader, host func() string, id string) {
	if p.World == 1 || r.err != nil {
		return
	}
	if p.Addr, _ = r.getenv("MASTER_ADDR"); p.Addr == "" {
		p.Addr = host()
	}
	if id != "" {
		p.Port = derivedPort(id)
	}
	if p.Port = r.numberOr("MASTER_PORT", p.Port, 1, 65535); p.Port == 0 {
		r.fail("MASTER_PORT", "", "it is not set, and neither is a job's id to derive it from: it must be a free port of rank 0's host, such as 29500")
	}
}

func (p *Place) finish(r *reader, id string) (*Place, error) {
	p.common(r)
	if p.RunID == "" {
		p.RunID = id
	}
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// derivedPort is a port for a job: 15000 to 31999, which is below those that Linux gives to outgoing connections.
func derivedPort(id string) int {
	h := fnv.New32a()
	h.Write([]byte(id)) // never fails
	return 15000 + int(h.Sum32()%17000)
}

// firstHost is the first of the hosts that a Slurm list names: gpu01 of gpu[01-03,07],login.
func firstHost(list string) (string, error) {
	var host strings.Builder
	rest := list
	for {
		i := strings.IndexAny(rest, "[],")
		if i < 0 {
			host.WriteString(rest)
			break
		}
		host.WriteString(rest[:i])
		if rest[i] == ',' {
			break
		}
		numbers, after, closed := strings.Cut(rest[i+1:], "]")
		if rest[i] == ']' || !closed {
			return "", fmt.Errorf("its brackets do not match: hosts are listed as in gpu[01-03,07],login")
		}
		first, _, _ := strings.Cut(numbers, ",")
		first, _, _ = strings.Cut(first, "-")
		if first == "" || strings.Trim(first, "0123456789") != "" {
			return "", fmt.Errorf("[%s] does not begin with a number: hosts are listed as in gpu[01-03,07],login", numbers)
		}
		host.WriteString(first)
		rest = after
	}
	if host.Len() == 0 {
		return "", fmt.Errorf("it does not begin with a host: hosts are listed as in gpu[01-03,07],login")
	}
	return host.String(), nil
}

// tasksOnNode is how many tasks a Slurm list, such as 4(x2),3, says that a node has.
func tasksOnNode(list string, node int) (int, error) {
	for entry := range strings.SplitSeq(list, ",") {
		number, times, repeated := strings.Cut(entry, "(x")
		count := 1
		tasks, err := strconv.Atoi(number)
		if repeated && err == nil {
			digits, closed := strings.CutSuffix(times, ")")
			if count, err = strconv.Atoi(digits); !closed {
				count = 0
			}
		}
		if err != nil || tasks < 1 || tasks > maxWorld || count < 1 {
			return 0, fmt.Errorf("%q is no number of tasks: it must be a list such as 4(x2),3", entry)
		}
		if node < count {
			return tasks, nil
		}
		node -= count
	}
	return 0, fmt.Errorf("it tells nothing of node SLURM_NODEID: it must be a list such as 4(x2),3, a number for each node")
}
