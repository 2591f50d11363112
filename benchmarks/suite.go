package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	rows  []row
	log   func(format string, args ...any) // takes a line of progress
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

// onCores is the mode of a measurement that keeps n cores busy.
func onCores(n int) string {
	if n == 1 {
		return "1 core"
	}
	return fmt.Sprintf("%d cores", n)
}
