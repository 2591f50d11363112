package job

import (
	"fmt"
	"net"
	"strconv"
)

// The variables that only Tandem knows. Those of torchrun are in Environ.
const (
	// TokenVariable is the secret of a job's processes: whoever connects without it is refused.
	TokenVariable = "TANDEM_TOKEN"
	// ListenVariable is the number of an inherited file descriptor: the socket that listens at MASTER_ADDR:MASTER_PORT. Rank 0
	// gets it, so that nobody can take the port before it does.
	ListenVariable = "TANDEM_LISTEN_FD"
	// RunVariable is the job's id, the same in every process of a job, those that workers start included.
	RunVariable = "TANDEM_RUN_ID"
	// ErrorFileVariable is where a worker writes a [Failure].
	ErrorFileVariable = "TANDEM_ERROR_FILE"
)

// Place is a process's place in a job.
type Place struct {
	Rank, World           int // among all processes
	LocalRank, LocalWorld int // among those of its node
	Node, Nodes           int // GROUP_RANK, and how many there are
	Addr                  string
	Port                  int // where rank 0 listens

	Token     string
	ListenFD  int // -1: none
	RunID     string
	ErrorFile string

	Role                 string
	Restart, MaxRestarts int
	Source               string // what told: "torchrun's variables", "Slurm", "Open MPI"
}

// Endpoint is where rank 0 listens, as HOST:PORT.
func (p *Place) Endpoint() string { return net.JoinHostPort(p.Addr, strconv.Itoa(p.Port)) }

// VariableError is the error of an environment variable that makes no sense.
type VariableError struct {
	Variable, Value string // Value is empty for a variable that is missing
	Reason          string
}

func (e *VariableError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("job: %s: %s", e.Variable, e.Reason)
	}
	return fmt.Sprintf("job: %s=%q: %s", e.Variable, e.Value, e.Reason)
}

// Getenv tells a variable's value, and whether it is set: os.LookupEnv.
type Getenv = func(name string) (value string, set bool)

// Lookup reads this process's place. It is nil for a process that is in no job.
//
// Open MPI is asked before Slurm: where mpirun starts its daemons by srun, their processes have the variables of a step of daemons, too.
func Lookup(getenv Getenv) (*Place, error) {
	for _, read := range []func(Getenv) (*Place, error){torchPlace, openMPIPlace, slurmPlace} {
		if p, err := read(getenv); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// Environ is the variables that say all of this to a process.
func (p *Place) Environ() []string {
	env := []string{
		"RANK=" + strconv.Itoa(p.Rank),
		"WORLD_SIZE=" + strconv.Itoa(p.World),
		"LOCAL_RANK=" + strconv.Itoa(p.LocalRank),
		"LOCAL_WORLD_SIZE=" + strconv.Itoa(p.LocalWorld),
		"GROUP_RANK=" + strconv.Itoa(p.Node),
		"GROUP_WORLD_SIZE=" + strconv.Itoa(p.Nodes),
		"ROLE_NAME=" + p.Role,
		"ROLE_RANK=" + strconv.Itoa(p.Rank),
		"ROLE_WORLD_SIZE=" + strconv.Itoa(p.World),
		"MASTER_ADDR=" + p.Addr,
		"MASTER_PORT=" + strconv.Itoa(p.Port),
		"TORCHELASTIC_RESTART_COUNT=" + strconv.Itoa(p.Restart),
		"TORCHELASTIC_MAX_RESTARTS=" + strconv.Itoa(p.MaxRestarts),
		"TORCHELASTIC_RUN_ID=" + p.RunID,
		RunVariable + "=" + p.RunID,
		TokenVariable + "=" + p.Token,
	}
	if p.ListenFD >= 0 {
		env = append(env, ListenVariable+"="+strconv.Itoa(p.ListenFD))
	}
	if p.ErrorFile != "" {
		env = append(env, ErrorFileVariable+"="+p.ErrorFile)
	}
	return env
}

// torchPlace reads torchrun's variables. A process is in a job when RANK is set.
func torchPlace(getenv Getenv) (*Place, error) {
	if _, set := getenv("RANK"); !set {
		return nil, nil
	}
	r := reader{getenv: getenv}
	p := &Place{Source: "torchrun's variables"}
	p.World = r.number("WORLD_SIZE", 1, maxWorld)
	p.Rank = r.number("RANK", 0, p.World-1)
	p.LocalWorld = r.numberOr("LOCAL_WORLD_SIZE", p.World, 1, p.World)
	p.LocalRank = r.numberOr("LOCAL_RANK", p.Rank, 0, p.LocalWorld-1)
	p.Nodes = r.numberOr("GROUP_WORLD_SIZE", max(1, p.World/max(1, p.LocalWorld)), 1, p.World)
	p.Node = r.numberOr("GROUP_RANK", 0, 0, maxWorld)
	if p.World > 1 {
		p.Addr = r.text("MASTER_ADDR", "the name or address of rank 0's host, such as 127.0.0.1")
		p.Port = r.number("MASTER_PORT", 1, 65535)
	}
	p.common(&r)
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// common reads what is the same whatever started the process.
func (p *Place) common(r *reader) {
	p.ListenFD = r.numberOr(ListenVariable, -1, 0, 1<<20)
	p.Restart = r.numberOr("TORCHELASTIC_RESTART_COUNT", 0, 0, 1<<30)
	p.MaxRestarts = r.numberOr("TORCHELASTIC_MAX_RESTARTS", 0, 0, 1<<30)
	p.Token, _ = r.getenv(TokenVariable)
	p.ErrorFile, _ = r.getenv(ErrorFileVariable)
	p.Role, _ = r.getenv("ROLE_NAME")
	if p.RunID, _ = r.getenv(RunVariable); p.RunID == "" {
		p.RunID, _ = r.getenv("TORCHELASTIC_RUN_ID")
	}
}

// maxWorld is more processes than any job has.
const maxWorld = 1 << 20

// reader reads variables and keeps the first error.
type reader struct {
	getenv Getenv
	err    error
}

func (r *reader) fail(name, value, format string, args ...any) {
	if r.err == nil {
		r.err = &VariableError{Variable: name, Value: value, Reason: fmt.Sprintf(format, args...)}
	}
}

// text reads a variable that must be there.
func (r *reader) text(name, what string) string {
	value, _ := r.getenv(name)
	if value == "" {
		r.fail(name, "", "it is not set: it must be %s", what)
	}
	return value
}

// number reads a variable that must be there.
func (r *reader) number(name string, lo, hi int) int {
	value, set := r.getenv(name)
	if !set {
		r.fail(name, "", "it is not set: it must be a number from %d to %d", lo, hi)
		return lo
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < lo || n > hi {
		r.fail(name, value, "it must be a number from %d to %d", lo, hi)
		return lo
	}
	return n
}

// numberOr reads a variable that may be missing.
func (r *reader) numberOr(name string, missing, lo, hi int) int {
	if value, _ := r.getenv(name); value == "" {
		return missing
	}
	return r.number(name, lo, hi)
}
