package job

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// environ is an environment for Lookup: a list of NAME=VALUE with blanks between them.
func environ(lists ...string) Getenv {
	return getenv(strings.Fields(strings.Join(lists, " ")))
}

// The environments of engines: a task of srun on the second of three nodes, a batch script, a process of mpirun.
const (
	slurmTask = "SLURM_JOB_ID=31 SLURM_STEP_ID=2 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=11 SLURM_STEP_NUM_NODES=3" +
		" SLURM_STEP_NODELIST=gpu[07-09] SLURM_JOB_NODELIST=gpu[05-12] SLURM_STEP_TASKS_PER_NODE=4(x2),3"
	slurmLauncher = "SLURM_JOB_ID=31 SLURM_STEP_ID=2 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2" +
		" SLURM_STEP_NODELIST=gpu[07,09] SLURM_STEP_TASKS_PER_NODE=1(x2)"
	slurmBatch = "SLURM_JOB_ID=31 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NNODES=4 SLURM_NTASKS=4 SLURM_JOB_NODELIST=gpu[05-08] SLURM_TASKS_PER_NODE=1(x4)"
	mpiTask    = "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=prterun-host-77@1"
	mpiLocal   = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_ess_base_jobid=1912"
)

func TestLookupOfEngines(t *testing.T) {
	task := Place{
		Rank: 5, World: 11, LocalRank: 1, LocalWorld: 4, Node: 1, Nodes: 3, Addr: "gpu07", Port: derivedPort("slurm-31.2"),
		ListenFD: -1, RunID: "slurm-31.2", Source: "Slurm",
	}
	for _, tt := range []struct {
		name string
		env  Getenv
		want *Place
	}{
		{"nothing", environ(), nil},
		{"a task of srun", environ(slurmTask), &task},
		{"on the last node", environ(slurmTask, "SLURM_PROCID=8 SLURM_NODEID=2 SLURM_LOCALID=0"), with(task, func(p *Place) {
			p.Rank, p.Node, p.LocalRank, p.LocalWorld = 8, 2, 0, 3
		})},
		{"the list of the job's hosts", environ(slurmTask, "SLURM_STEP_NODELIST="), with(task, func(p *Place) { p.Addr = "gpu05" })},
		{"an address that was given", environ(slurmTask, "MASTER_ADDR=10.0.0.7 MASTER_PORT=29500"), with(task, func(p *Place) {
			p.Addr, p.Port = "10.0.0.7", 29500
		})},
		{"one node", environ(slurmTask, "SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0 SLURM_LOCALID=5"), with(task, func(p *Place) {
			p.LocalRank, p.LocalWorld, p.Node, p.Nodes, p.Addr = 5, 11, 0, 1, "127.0.0.1"
		})},
		{"one task", environ(slurmTask, "SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0"), &Place{
			World: 1, LocalWorld: 1, Nodes: 1, ListenFD: -1, RunID: "slurm-31.2", Source: "Slurm",
		}},
		{"a batch script", environ(slurmBatch), nil},
		{"a worker of a launcher in a step", environ(slurmLauncher, "RANK=0 WORLD_SIZE=1"), &Place{
			World: 1, LocalWorld: 1, Nodes: 1, ListenFD: -1, Source: "torchrun's variables",
		}},
		{"a process of mpirun", environ(mpiTask, "MASTER_ADDR=node0"), &Place{
			Rank: 5, World: 8, LocalRank: 1, LocalWorld: 4, Node: 1, Nodes: 2, Addr: "node0", Port: derivedPort("mpi-prterun-host-77@1"),
			ListenFD: -1, RunID: "mpi-prterun-host-77@1", Source: "Open MPI",
		}},
		{"mpirun on one host", environ(mpiLocal), &Place{
			Rank: 1, World: 2, LocalRank: 1, LocalWorld: 2, Nodes: 1, Addr: "127.0.0.1", Port: derivedPort("mpi-1912"),
			ListenFD: -1, RunID: "mpi-1912", Source: "Open MPI",
		}},
		{"mpirun whose daemons srun started", environ(slurmLauncher, mpiLocal), &Place{
			Rank: 1, World: 2, LocalRank: 1, LocalWorld: 2, Nodes: 1, Addr: "127.0.0.1", Port: derivedPort("mpi-1912"),
			ListenFD: -1, RunID: "mpi-1912", Source: "Open MPI",
		}},
	} {
		got, err := Lookup(tt.env)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func with(p Place, change func(*Place)) *Place {
	change(&p)
	return &p
}

func TestLookupNode(t *testing.T) {
	launcher := NodePlace{Node: 1, Nodes: 2, Addr: "gpu07", Port: derivedPort("slurm-31.2"), RunID: "slurm-31.2", Source: "Slurm"}
	for _, tt := range []struct {
		name string
		env  Getenv
		want *NodePlace
	}{
		{"nothing", environ(), nil},
		{"a launcher a node by srun", environ(slurmLauncher), &launcher},
		{"an address that was given", environ(slurmLauncher, "MASTER_ADDR=10.0.0.7 MASTER_PORT=29500"),
			&NodePlace{Node: 1, Nodes: 2, Addr: "10.0.0.7", Port: 29500, RunID: "slurm-31.2", Source: "Slurm"}},
		{"a batch script", environ(slurmBatch), nil},
		{"a launcher a node by mpirun", environ(mpiTask, "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0"),
			&NodePlace{Node: 5, Nodes: 8, Port: derivedPort("mpi-prterun-host-77@1"), RunID: "mpi-prterun-host-77@1", Source: "Open MPI"}},
		{"an indexed job", environ("JOB_COMPLETION_INDEX=3 MASTER_ADDR=train-0.train"), &NodePlace{Node: 3, Addr: "train-0.train", Source: "Kubernetes"}},
	} {
		got, err := LookupNode(tt.env)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestEnginesWithoutSense: errors name the variable and what works.
func TestEnginesWithoutSense(t *testing.T) {
	process := func(getenv Getenv) error { _, err := Lookup(getenv); return err }
	launcher := func(getenv Getenv) error { _, err := LookupNode(getenv); return err }
	for _, tt := range []struct {
		lookup         func(Getenv) error
		env            Getenv
		variable, says string
	}{
		{process, environ(slurmTask, "SLURM_PROCID=11"), "SLURM_PROCID", "0 to 10"},
		{process, environ(slurmTask, "SLURM_STEP_NUM_TASKS=many"), "SLURM_STEP_NUM_TASKS", "a number from 1"},
		{process, environ(slurmTask, "SLURM_NODEID=3"), "SLURM_NODEID", "0 to 2"},
		{process, environ(slurmTask, "SLURM_LOCALID=4"), "SLURM_LOCALID", "0 to 3"},
		{process, environ(slurmTask, "SLURM_JOB_ID="), "SLURM_JOB_ID", "not set"},
		{process, environ(slurmTask, "SLURM_STEP_NODELIST=gpu[07"), "SLURM_STEP_NODELIST", "gpu[01-03,07],login"},
		{process, environ(slurmTask, "SLURM_STEP_NODELIST= SLURM_JOB_NODELIST="), "SLURM_JOB_NODELIST", "gpu[01-03]"},
		{process, environ(slurmTask, "SLURM_STEP_TASKS_PER_NODE=4"), "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"},
		{process, environ(slurmTask, "SLURM_STEP_TASKS_PER_NODE=4(y2)"), "SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
		{process, environ(slurmTask, "MASTER_PORT=http"), "MASTER_PORT", "1 to 65535"},
		{process, environ(mpiTask), "MASTER_ADDR", "mpirun -x MASTER_ADDR=HOST"},
		{process, environ(mpiTask, "MASTER_ADDR=node0 PMIX_NAMESPACE="), "MASTER_PORT", "29500"},
		{process, environ(mpiTask, "OMPI_COMM_WORLD_RANK=8"), "OMPI_COMM_WORLD_RANK", "0 to 7"},
		{process, environ(mpiTask, "OMPI_COMM_WORLD_LOCAL_SIZE=9"), "OMPI_COMM_WORLD_LOCAL_SIZE", "1 to 8"},
		{launcher, environ(slurmTask), "SLURM_STEP_NUM_TASKS", "srun --ntasks-per-node=1"},
		{launcher, environ(mpiTask), "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun --map-by ppr:1:node"},
		{launcher, environ("JOB_COMPLETION_INDEX=x"), "JOB_COMPLETION_INDEX", "a number from 0"},
		{launcher, environ(slurmLauncher, "MASTER_PORT=0"), "MASTER_PORT", "1 to 65535"},
	} {
		err := tt.lookup(tt.env)
		var e *VariableError
		if !errors.As(err, &e) || e.Variable != tt.variable || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want one of %s with %q", tt.variable, err, tt.variable, tt.says)
		}
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"login":                 "login",
		"login,gpu1":            "login",
		"gpu[01-03,07],x":       "gpu01",
		"gpu[7,9-12]":           "gpu7",
		"rack[2-3]n[010-012]-a": "rack2n010-a",
		"a-b.c[5]":              "a-b.c5",
	} {
		if got, err := firstHost(list); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", list, got, err, want)
		}
	}
	for _, list := range []string{"", ",gpu1", "gpu[", "gpu[]", "gpu[a]", "gpu]1[", "gpu[1-3", "gpu[-3]", "gpu[[1]]"} {
		if got, err := firstHost(list); err == nil {
			t.Errorf("%q: %q, want an error", list, got)
		}
	}
}

func FuzzFirstHost(f *testing.F) {
	for _, list := range []string{"login", "gpu[01-03,07],x", "rack[2-3]n[010-012]", "gpu[", "a[1]]", ",", "[1]"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		host, err := firstHost(list)
		if err != nil {
			return
		}
		if host == "" || strings.ContainsAny(host, "[],") {
			t.Errorf("%q: host %q", list, host)
		}
		if again, err := firstHost(host + ",other"); err != nil || again != host {
			t.Errorf("%q: host %q, of which the first is %q, %v", list, host, again, err)
		}
	})
}

func TestTasksOnNode(t *testing.T) {
	const list = "4(x2),3,1(x10)"
	for node, want := range []int{4, 4, 3, 1, 1} {
		if got, err := tasksOnNode(list, node); err != nil || got != want {
			t.Errorf("node %d: %d, %v; want %d", node, got, err, want)
		}
	}
	if _, err := tasksOnNode(list, 13); err == nil {
		t.Error("a node beyond the list: no error")
	}
	for _, list := range []string{"", "x", "0", "-1", "4(x", "4(x2", "4(x0)", "4(x-2)", "4(2)", "4(x2)3", "99999999999999999999"} {
		if got, err := tasksOnNode(list, 0); err == nil {
			t.Errorf("%q: %d, want an error", list, got)
		}
	}
}

func FuzzTasksOnNode(f *testing.F) {
	f.Add("4(x2),3", 1)
	f.Add("1", 0)
	f.Add("4(x9999999999999999999)", 3)
	f.Fuzz(func(t *testing.T, list string, node int) {
		if node < 0 {
			return
		}
		if n, err := tasksOnNode(list, node); err == nil && (n < 1 || n > maxWorld) {
			t.Errorf("%q: %d tasks on node %d", list, n, node)
		}
	})
}

// TestDerivedPorts: jobs get ports apart, below those of outgoing connections.
func TestDerivedPorts(t *testing.T) {
	seen := map[int]bool{}
	for _, id := range []string{"slurm-1.0", "slurm-1.1", "slurm-2.0", "slurm-12345678.0", "mpi-1912", ""} {
		p := derivedPort(id)
		if p < 15000 || p >= 32000 || seen[p] {
			t.Errorf("%q: port %d", id, p)
		}
		seen[p] = true
	}
}
