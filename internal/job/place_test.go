package job

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// getenv reads a list of NAME=VALUE, the last of a name first.
func getenv(list []string) Getenv {
	env := map[string]string{}
	for _, s := range list {
		name, value, _ := strings.Cut(s, "=")
		env[name] = value
	}
	return func(name string) (string, bool) {
		value, set := env[name]
		return value, set
	}
}

// TestRoundTrip: Lookup reads all that Environ says.
func TestRoundTrip(t *testing.T) {
	for _, want := range []*Place{
		{
			Rank: 6, World: 8, LocalRank: 2, LocalWorld: 4, Node: 1, Nodes: 2, Addr: "gpu07", Port: 29500,
			Token: "secret", ListenFD: 3, RunID: "night run", ErrorFile: "/tmp/a b/error.json", Role: "trainer", Restart: 1, MaxRestarts: 3,
		},
		{World: 2, LocalWorld: 2, Nodes: 1, Addr: "::1", Port: 1, ListenFD: -1, RunID: "a"},
		{World: 1, LocalWorld: 1, Nodes: 1, ListenFD: -1, RunID: "a"},
	} {
		want.Source = "torchrun's variables"
		got, err := Lookup(getenv(want.Environ()))
		if err != nil {
			t.Error(err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestEnvironHasTorchrunsNames(t *testing.T) {
	p := &Place{Rank: 3, World: 4, LocalRank: 1, LocalWorld: 2, Node: 1, Nodes: 2, Addr: "h", Port: 7, ListenFD: -1, RunID: "r", Role: "default", Restart: 1, MaxRestarts: 2}
	get := getenv(p.Environ())
	for name, want := range map[string]string{
		"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
		"ROLE_NAME": "default", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "7",
		"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_RUN_ID": "r",
	} {
		if got, _ := get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{ListenVariable, ErrorFileVariable} {
		if value, set := get(name); set {
			t.Errorf("%s is %q where there is none", name, value)
		}
	}
}

// TestLookupOfTorchrun: what others than Tandem set is enough, down to a rank, a size and an address.
func TestLookupOfTorchrun(t *testing.T) {
	const least = "RANK=1 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=29500"
	p := Place{Rank: 1, World: 4, LocalRank: 1, LocalWorld: 4, Nodes: 1, Addr: "h", Port: 29500, ListenFD: -1, Source: "torchrun's variables"}
	for _, tt := range []struct {
		env  Getenv
		want *Place
	}{
		{environ(least), &p},
		{environ(least, "LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=1"), with(p, func(p *Place) { p.LocalRank, p.LocalWorld, p.Node, p.Nodes = 0, 2, 1, 2 })},
		{environ(least, "TORCHELASTIC_RUN_ID=none"), with(p, func(p *Place) { p.RunID = "none" })},
		{environ("WORLD_SIZE=4"), nil}, // without a rank there is no place
	} {
		got, err := Lookup(tt.env)
		if err != nil {
			t.Error(err)
		} else if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for _, tt := range []struct {
		env            Getenv
		variable, says string
	}{
		{environ("RANK=0"), "WORLD_SIZE", "it is not set"},
		{environ(least, "RANK=4"), "RANK", `RANK="4": it must be a number from 0 to 3`},
		{environ(least, "RANK="), "RANK", "0 to 3"},
		{environ(least, "WORLD_SIZE=0"), "WORLD_SIZE", "a number from 1"},
		{environ(least, "LOCAL_WORLD_SIZE=5"), "LOCAL_WORLD_SIZE", "1 to 4"},
		{environ(least, "LOCAL_WORLD_SIZE=2 LOCAL_RANK=2"), "LOCAL_RANK", "0 to 1"},
		{environ(least, "MASTER_ADDR="), "MASTER_ADDR", "such as 127.0.0.1"},
		{environ(least, "MASTER_PORT=65536"), "MASTER_PORT", "1 to 65535"},
		{environ(least, ListenVariable+"=-1"), ListenVariable, "a number from 0"},
	} {
		_, err := Lookup(tt.env)
		var e *VariableError
		if !errors.As(err, &e) || e.Variable != tt.variable || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want one of %s with %q", tt.variable, err, tt.variable, tt.says)
		}
	}
}

func FuzzLookup(f *testing.F) {
	f.Add("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1")
	f.Add(slurmTask)
	f.Add(mpiTask + " MASTER_ADDR=h")
	f.Fuzz(func(t *testing.T, env string) {
		p, err := Lookup(environ(env))
		if p == nil {
			return
		}
		if err != nil || p.Rank < 0 || p.Rank >= p.World || p.LocalRank < 0 || p.LocalRank >= p.LocalWorld || p.LocalWorld > p.World {
			t.Errorf("%q: %+v, %v", env, p, err)
		}
		if p.World > 1 && (p.Addr == "" || p.Port < 1 || p.Port > 65535) {
			t.Errorf("%q: rank 0 listens at %s", env, p.Endpoint())
		}
	})
}

// A worker that `tandem run` starts finds its place in its environment.
func ExampleLookup() {
	env := (&Place{Rank: 1, World: 2, LocalRank: 1, LocalWorld: 2, Nodes: 1, Addr: "127.0.0.1", Port: 29500, ListenFD: -1}).Environ()
	p, err := Lookup(getenv(env)) // a program gives os.LookupEnv
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("rank %d of %d; rank 0 listens at %s\n", p.Rank, p.World, p.Endpoint())
	// Output: rank 1 of 2; rank 0 listens at 127.0.0.1:29500
}
