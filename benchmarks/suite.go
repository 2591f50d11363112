package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// suite is a set of workloads that need the same kind of machine.
type suite struct {
	name, about string
	workloads   []workload
}

// workload measures one thing, at some sizes, and adds rows to b.
type workload struct {
	name, about string
	run         func(ctx context.Context, b *bench) error
}

// suites are the values of --suite.
var suites = map[string]suite{}

// register is for the init functions of files that define suites.
func register(s suite) { suites[s.name] = s }

func suiteNames() []string { return slices.Sorted(maps.Keys(suites)) }

// bench is what workloads work with: the settings of the run, and the rows so far.
type bench struct {
	sampling
	suite string
	cores int      // to use
	peers []string // to measure
	torch *torch   // on the CPU; nil: not to be measured
	// scripts is the folder of the peers' scripts, "" before they are wanted.
	scripts string
	// torchModes are how PyTorch runs on a card.
	torchModes []string
	ceilings   *ceilings // of the card; nil before they were measured
	about      []string  // what else the machine has that counts
	rows       []row
	log        func(format string, args ...any) // takes a line of progress
}

// wants reports whether a peer is to be measured.
func (b *bench) wants(peer string) bool { return slices.Contains(b.peers, peer) }

// add appends rows of the current suite.
func (b *bench) add(rows ...row) {
	for _, r := range rows {
		r.Suite = b.suite
		b.rows = append(b.rows, r)
	}
}

// entrant takes part in a comparison.
type entrant struct {
	peer  string // whose this is; "" for ours
	limit bool   // whether the peer is a limit of the machine
	run   contender
	row   func(t timing) row // what its time means
}

// compare measures entrants in turn. It adds a row for each of ours and each peer on as many cores, which a mode begins with; then the
// peers' own rows. It returns what every entrant reached, in their order.
func (b *bench) compare(ctx context.Context, entrants ...entrant) ([]row, error) {
	contenders := make([]contender, len(entrants))
	for i, e := range entrants {
		contenders[i] = e.run
	}
	timings, err := b.measure(ctx, contenders...)
	if err != nil {
		return nil, err
	}
	reached := make([]row, len(entrants))
	var peers []int
	for i, e := range entrants {
		reached[i] = e.row(timings[i])
		if e.peer != "" {
			peers = append(peers, i)
		}
	}
	for i, e := range entrants {
		if e.peer != "" {
			continue
		}
		alone := true
		for _, p := range peers {
			if strings.HasPrefix(reached[i].Mode, reached[p].Mode) {
				r := reached[i].against(entrants[p].peer, reached[p].Value)
				r.limit = entrants[p].limit
				b.add(r)
				alone = false
			}
		}
		if alone {
			b.add(reached[i])
		}
	}
	for _, p := range peers {
		b.add(reached[p].by(entrants[p].peer))
	}
	return reached, nil
}

// onCores is the mode of a measurement that keeps n cores busy.
func onCores(n int) string {
	if n == 1 {
		return "1 core"
	}
	return fmt.Sprintf("%d cores", n)
}
